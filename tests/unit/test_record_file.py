"""A whole epoch on disk: from tick 0 on, in order, and never at the cost of the tick loop."""

import os
import threading
from pathlib import Path

import pytest
from full_disk import full_disk
from waiting import eventually

from tandem.core.config import Group, Limits, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import NO_SLOT, Epoch, RankId, Tick
from tandem.core.inputs import Frame
from tandem.core.recorder import Entry, Recorder
from tandem.runtime.record_file import RecordFile
from tandem.runtime.records import Heading, Record

HEADING = Heading(Group(RoleName.DECODE, "d0", (4, 4)), RankId(1), Epoch(5), Limits())
DEADLINE_S = 30.0


def frame(tick: int) -> Frame:
    return Frame(Tick(tick), NO_SLOT, tick)


def step(recorder: Recorder, *ticks: int) -> None:
    for tick in ticks:
        recorder.take(frame(tick))
        recorder.led_to(tick)


def ticks(path: Path) -> list[int]:
    return [entry.frame.tick for entry in Record(path).entries()]


def test_every_tick_is_in_the_file_soon_and_once(tmp_path: Path):
    recorder = Recorder()
    step(recorder, 0, 1)
    file = RecordFile(tmp_path, HEADING, recorder)
    file.take()
    step(recorder, 2)
    file.take()
    file.take()
    eventually(lambda: ticks(file.path) == [0, 1, 2], "the file is written while the rank runs")
    step(recorder, 3)
    file.close(DEADLINE_S)
    assert list(Record(file.path).entries()) == [Entry(frame(tick), tick) for tick in range(4)]
    assert Record(file.path).heading == HEADING


def test_a_step_that_did_not_end_is_the_last_entry(tmp_path: Path):
    recorder = Recorder()
    file = RecordFile(tmp_path, HEADING, recorder)
    step(recorder, 0)
    recorder.take(frame(1))
    file.close(DEADLINE_S)
    assert list(Record(file.path).entries()) == [Entry(frame(0), 0), Entry(frame(1), None)]


def test_only_the_owner_may_read_it(tmp_path: Path):
    mask = os.umask(0)
    try:
        file = RecordFile(tmp_path / "records", HEADING, Recorder())
    finally:
        os.umask(mask)
    file.close(DEADLINE_S)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_the_operators_mistake(tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="record-dir is"):
        RecordFile(tmp_path / "taken", HEADING, Recorder())


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path):
    with full_disk(), pytest.raises(ConfigError, match=r"record-dir is .* too large"):
        RecordFile(tmp_path, HEADING, Recorder())
    assert list(tmp_path.iterdir()) == []


def test_a_record_with_a_gap_ends_before_it(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    recorder = Recorder(most_bytes=1)
    file = RecordFile(tmp_path, HEADING, recorder)
    for several in ((0,), (1, 2), (3,)):
        step(recorder, *several)
        file.take()
    file.close(DEADLINE_S)
    assert ticks(file.path) == [0]
    assert "more than it keeps at once" in caplog.text


class Stuck:
    """A disk that takes nothing until it is let go, and then is full."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def write(self, entries: bytes) -> int:
        self.go.wait(DEADLINE_S)
        raise OSError(28, "No space left on device")

    def __enter__(self) -> "Stuck":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def test_a_disk_that_is_stuck_and_full_ends_the_record_and_not_the_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    disk, recorder = Stuck(), Recorder()
    monkeypatch.setattr("tandem.runtime.record_file.BACKLOG", 2)
    monkeypatch.setattr("tandem.runtime.record_file.create", lambda path: disk)
    monkeypatch.setattr("tandem.runtime.record_file.begin", lambda file, heading: None)
    file = RecordFile(tmp_path, HEADING, recorder)
    for tick in range(5):
        step(recorder, tick)
        file.take()
    assert caplog.text.count("the disk is too slow") == 1
    disk.go.set()
    file.close(DEADLINE_S)
    assert "No space left" in caplog.text
    assert not file._thread.is_alive()
