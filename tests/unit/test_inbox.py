"""Other threads' events: every one is taken, once and in order, by a taker that sleeps in poll."""

import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.runtime.inbox import ThreadInbox

DEADLINE_S = 30.0


@pytest.fixture
def inbox() -> Iterator[ThreadInbox[tuple[int, int]]]:
    made: ThreadInbox[tuple[int, int]] = ThreadInbox()
    yield made
    made.close()


def readable(inbox: ThreadInbox[tuple[int, int]], timeout_s: float = 0.0) -> bool:
    return bool(select.select([inbox.fd], [], [], timeout_s)[0])


def test_what_was_put_is_taken_once_in_order(inbox: ThreadInbox[tuple[int, int]]):
    assert inbox.take() == []
    for number in range(3):
        inbox.put((0, number))
    assert readable(inbox)
    assert inbox.take() == [(0, 0), (0, 1), (0, 2)]
    assert not readable(inbox)
    assert inbox.take() == []


def test_a_wake_up_needs_no_item(inbox: ThreadInbox[tuple[int, int]]):
    inbox.wake()
    assert readable(inbox)
    assert inbox.take() == []
    assert not readable(inbox)


def test_a_sleeping_taker_loses_nothing_of_many_threads(inbox: ThreadInbox[tuple[int, int]]):
    threads = [
        threading.Thread(target=lambda who=who: [inbox.put((who, number)) for number in range(500)]) for who in range(4)
    ]
    for thread in threads:
        thread.start()
    taken: list[tuple[int, int]] = []
    while len(taken) < 2000:
        assert readable(inbox, DEADLINE_S), "an item was put, but nobody was woken"
        taken += inbox.take()
    for thread in threads:
        thread.join()
    for who in range(4):
        assert [number for each, number in taken if each == who] == list(range(500))


def test_its_descriptor_is_given_back():
    made: ThreadInbox[int] = ThreadInbox()
    made.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made.fd)


def test_whoever_is_late_wakes_nobody_after_the_end(tmp_path: Path):
    """Nor writes into the file that has its descriptor now."""
    made: ThreadInbox[int] = ThreadInbox()
    fd = made.fd
    made.close()
    made.close()
    with open(tmp_path / "other", "wb") as other:
        assert other.fileno() == fd
        made.put(1)
        made.wake()
    assert (tmp_path / "other").read_bytes() == b""
