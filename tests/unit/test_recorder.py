"""The flight record: every tick in order, encoded once, bounded in bytes."""

import msgspec
import pytest

from tandem.core.ids import NO_SLOT, RequestId, Room, Tick
from tandem.core.inputs import Abort, Frame
from tandem.core.recorder import ENTRY_BYTES, RECORD_BYTES, Entry, Recorder
from tandem.core.requests import Reason

ABORT = Abort(Room(RequestId(1), 1), Reason.CLIENT_GONE)


def frame(tick: int) -> Frame:
    return Frame(Tick(tick), NO_SLOT, 7 * tick, (ABORT,))


def recorded(ticks: int, most_bytes: int = RECORD_BYTES) -> Recorder:
    recorder = Recorder(most_bytes)
    for tick in range(ticks):
        recorder.take(frame(tick))
        recorder.led_to(digest_of(tick))
    return recorder


def digest_of(tick: int) -> int:
    return 2**63 + tick


def entries(recorder: Recorder) -> list[Entry]:
    return [msgspec.msgpack.decode(each.entry, type=Entry) for each in recorder.since(Tick(-1))]


def test_every_frame_is_there_with_the_digest_it_led_to():
    assert entries(recorded(3)) == [Entry(frame(tick), digest_of(tick)) for tick in range(3)]


def test_what_came_since_a_tick_can_be_asked_for():
    recorder = recorded(5)
    assert [(each.tick, each.digest) for each in recorder.since(Tick(2))] == [(3, digest_of(3)), (4, digest_of(4))]
    assert recorder.since(Tick(4)) == recorder.since(Tick(9)) == []
    assert Recorder().since(Tick(-1)) == []


def test_past_the_bound_the_oldest_go():
    size = len(recorded(1).since(Tick(-1))[0].entry) + ENTRY_BYTES
    recorder = recorded(10, most_bytes=3 * size + size // 2)
    assert recorder.first_tick == 7
    assert [entry.frame.tick for entry in entries(recorder)] == [7, 8, 9]
    assert [each.tick for each in recorder.since(Tick(2))] == [7, 8, 9], "all that is left"
    assert recorded(3, most_bytes=3 * size).first_tick == 0


def test_one_frame_is_kept_whatever_its_size():
    recorder = recorded(2, most_bytes=1)
    assert [entry.frame.tick for entry in entries(recorder)] == [1]


def test_a_step_that_does_not_end_is_in_the_record_without_a_digest():
    recorder = recorded(1)
    assert recorder.unfinished() is None
    recorder.take(frame(1))
    unfinished = recorder.unfinished()
    assert unfinished is not None
    assert msgspec.msgpack.decode(unfinished, type=Entry) == Entry(frame(1), None)
    assert len(recorder.since(Tick(-1))) == 1
    recorder.led_to(5)
    assert recorder.unfinished() is None


def test_a_tick_is_never_left_out():
    recorder = recorded(1)
    recorder.take(frame(2))
    with pytest.raises(AssertionError):
        recorder.led_to(5)
