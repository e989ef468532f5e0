"""The unix sockets of a rank have names of their own in each incarnation, and those of earlier ones are swept away."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.runtime.links import socket_name, sweep


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def test_only_what_a_rank_has_left_behind_itself_goes(tmp_path: Path, bound: list[socket.socket]):
    mine = [socket_name(kind, "a-1", 2, incarnation) for kind in ("ring", "kv12") for incarnation in (1, 2**62 - 1)]
    others = [socket_name("ring", *who, 1) for who in (("a", 1), ("a-1-2", 0), ("a-1", 22), ("x", 2), ("a.1", 2))]
    for name in (*mine, *others):
        one = socket.socket(socket.AF_UNIX)
        one.bind(str(tmp_path / name))
        bound.append(one)
    file = tmp_path / socket_name("ring", "a-1", 2, 7)
    file.touch()
    sweep(str(tmp_path), "a-1", 2)
    assert {path.name for path in tmp_path.iterdir()} == {*others, file.name}


def test_there_may_be_nothing_to_sweep(tmp_path: Path):
    sweep(str(tmp_path / "none"), "a", 0)
    assert list(tmp_path.iterdir()) == []


def test_two_incarnations_never_meet():
    assert socket_name("ring", "d0", 1, 1) != socket_name("ring", "d0", 1, 2)
