"""The cores of a machine, shared by the stages on it: who has which place."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.engine.cpu.cores import STAGES_MAX, Place

STRUCK_WHILE_IT_COMPUTES = """
import sys, time
from tandem.engine.cpu.cores import Place
place = Place(sys.argv[1])
place.computes(True)
print(place.number, flush=True)
time.sleep(600)
"""


def test_each_stage_has_a_place_of_its_own_also_in_one_process(tmp_path: Path):
    places = [Place(str(tmp_path)) for _ in range(3)]
    assert [place.number for place in places] == [0, 1, 2]
    del places[1]
    assert Place(str(tmp_path)).number == 1


def test_the_place_of_a_stage_that_died_is_free_again_and_computes_nothing(tmp_path: Path):
    arguments = [sys.executable, "-c", STRUCK_WHILE_IT_COMPUTES, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"0\n"
        assert Place(str(tmp_path)).number == 1
        other.send_signal(signal.SIGKILL)
    assert (tmp_path / "cores").read_bytes() == b"\1" + b"\0" * (STAGES_MAX - 1)
    again = Place(str(tmp_path))
    assert again.number == 0
    assert (tmp_path / "cores").read_bytes() == b"\0" * STAGES_MAX


def test_those_in_other_folders_share_nothing(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first, second = (Place(str(tmp_path / folder)) for folder in ("a", "b"))
    assert (first.number, second.number) == (0, 0)


def test_one_too_many_is_told_what_to_do(tmp_path: Path):
    places = [Place(str(tmp_path)) for _ in range(STAGES_MAX)]
    with pytest.raises(OSError, match="give this one a folder of its own"):
        Place(str(tmp_path))
    assert len(places) == STAGES_MAX


def test_a_file_system_without_locks_is_named_by_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_locks(*given: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.fcntl", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        Place(str(tmp_path))
