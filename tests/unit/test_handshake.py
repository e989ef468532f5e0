"""The small rules around the handshake: known answers and their places, absences, sessions that are over."""

import msgspec
import pytest

from kvtransfer.absences import Absences
from kvtransfer.handshake import ANSWER_BYTES, Key, known_answer
from kvtransfer.parted import RETIRED, Parted
from kvtransfer.tail import Tail
from tandem.core.ids import Epoch, LayerId, RankId
from tandem.core.messages import Hello, Region

REGION = Region(1 << 20, LayerId(0), LayerId(2), 8, 64)
PREFILL = Hello("p", RankId(0), 1, 1, "f", "t", "e", REGION)
DECODE = Hello("d", RankId(0), 1, 2, "f", "t", "e", REGION, probe=5, fence=0, session=1)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"incarnation": 3}, {}),
        ({"rank": 1}, {}),
        ({}, {"incarnation": 3}),
        ({}, {"rank": 1}),
        ({}, {"fence": 1}),
        ({}, {"session": 2}),
    ],
)
def test_every_session_has_a_known_answer_of_its_own(prefill: dict[str, int], decode: dict[str, int]) -> None:
    answer = known_answer(PREFILL, DECODE)
    assert len(answer) == ANSWER_BYTES
    changed = msgspec.structs.replace(PREFILL, **prefill), msgspec.structs.replace(DECODE, **decode)
    assert known_answer(*changed) != answer


def test_both_sides_know_the_same_answer() -> None:
    """What the prefill rank says back of itself differs from what it is told at its start."""
    said = msgspec.structs.replace(PREFILL, endpoint="x", probe=5, fence=3, session=1)
    assert known_answer(said, DECODE) == known_answer(PREFILL, DECODE)


def test_each_rank_has_a_place_behind_the_pool() -> None:
    memory = memoryview(bytearray(2 * ANSWER_BYTES + 1))
    tail = Tail(REGION, memory)
    first, second = tail.slot(("p", RankId(0))), tail.slot(("p", RankId(1)))
    assert first is not None
    assert second is not None
    assert tail.slot(("p", RankId(0))) == first, "it keeps it"
    assert tail.slot(("p", RankId(2))) is None, "there is an end to them"
    assert [tail.address(slot) for slot in (first, second)] == [(1 << 20) + 1024, (1 << 20) + 1024 + ANSWER_BYTES]
    tail.write(second, bytes([7]) * ANSWER_BYTES)
    assert tail.read(first) == bytes(ANSWER_BYTES)
    assert tail.read(second) == bytes(memory[ANSWER_BYTES:-1]) == bytes([7]) * ANSWER_BYTES


def key(rank: int) -> Key:
    return "d", RankId(rank)


def test_who_is_away_for_too_long_is_gone() -> None:
    absences = Absences(2.0)
    assert absences.update([key(0), key(1)], {key(1)}, 10.0) == []
    assert absences.update([key(0), key(1)], {key(1)}, 11.9) == []
    assert absences.update([key(0), key(1)], {key(1)}, 12.0) == [key(0)]


def test_who_comes_back_in_time_begins_anew() -> None:
    absences = Absences(2.0)
    absences.update([key(0)], {}, 10.0)
    absences.update([key(0)], {key(0)}, 11.0)
    assert absences.update([key(0)], {}, 12.0) == []
    assert absences.update([key(0)], {}, 14.0) == [key(0)]


def test_a_session_that_has_ended_and_those_before_it_are_over() -> None:
    parted = Parted()
    parted.end(b"d", 5)
    parted.end(b"d", 3)
    assert [parted.over(b"d", session) for session in (3, 5, 6)] == [True, True, False]
    assert not parted.over(b"e", 0)


def test_an_incarnation_with_a_successor_is_over_for_good() -> None:
    parted = Parted()
    parted.end(b"d", RETIRED)
    assert parted.retired(b"d")
    assert parted.over(b"d", 1 << 61)


def test_the_oldest_are_not_remembered_for_ever() -> None:
    parted = Parted(limit=2)
    for identity in (b"a", b"b", b"a", b"c"):
        parted.end(identity, 1)
    assert [parted.over(identity, 1) for identity in (b"a", b"b", b"c")] == [True, False, True]


def test_an_older_epoch_of_a_rank_is_its_past():
    parted = Parted(limit=2)
    said = [("d", 0, 4), ("d", 0, 4), ("d", 1, 3), ("d", 0, 6), ("d", 0, 5), ("d", 0, 6)]
    past = [parted.past(group, RankId(rank), Epoch(epoch)) for group, rank, epoch in said]
    assert past == [False, False, False, False, True, False]
    parted.past("e", RankId(0), Epoch(1))
    assert not parted.past("d", RankId(1), Epoch(2)), "the one that called longest ago is forgotten"
