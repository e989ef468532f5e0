"""When a ring counts as stalled, and who is named."""

import pytest

from consensus.pulse import LOOP
from consensus.stall import STALL_S, STALL_TICKS, patience_ms, stalled
from tandem.core.ids import Epoch, RankId, Tick
from tandem.core.messages import Heartbeat

PATIENCE_MS = 10_000


def ring(*said: tuple[int, str, int]) -> list[Heartbeat]:
    """(tick, what is awaited, since) of each rank."""
    return [
        Heartbeat(Epoch(5), RankId(rank), Tick(tick), awaiting, since_ms)
        for rank, (tick, awaiting, since_ms) in enumerate(said)
    ]


def verdict(*said: tuple[int, str, int]) -> str:
    text = stalled(ring(*said), PATIENCE_MS)
    assert text is not None
    return text


def test_a_ring_without_work_never_stalls():
    assert stalled(ring((7, "", 99_999), (7, "", 99_999)), PATIENCE_MS) is None


def test_as_long_as_one_rank_moves_nobody_is_accused():
    beats = ring((9, "return(7)", 60_000), (9, "", 500), (7, "hidden(7)", 30_000))
    assert stalled(beats, PATIENCE_MS) is None


def test_it_takes_the_whole_patience():
    assert stalled(ring((7, "return(7)", 9_999), (7, "ran(7)", 20_000)), PATIENCE_MS) is None
    assert stalled(ring((7, "return(7)", 10_000), (7, "ran(7)", 20_000)), PATIENCE_MS) is not None


HELD_UP = [(9, "return(7)", 11_000), (9, "ran(7)", 12_000), (9, "hidden(7)", 13_000)]
HUNG = [(9, "return(7)", 11_000), (6, LOOP, 12_000), (9, "ran(5)", 12_000)]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (HELD_UP, "rank 1, at tick 9, has awaited ran(7)"),
        ([(9, "ran(7)", 11_000), (9, "hidden(7)", 12_000)], "rank 0, at tick 9, has awaited ran(7)"),
        ([(9, "return(7)", 11_000), (6, "", 12_000)], "rank 1, at tick 6, has awaited baton(7)"),
        ([(9, "return(7)", 11_000), (9, "hidden(7)", 12_000)], "rank 1, at tick 9, has awaited hidden(7)"),
        ([(9, "return(7)", 11_000), (9, "", 12_000)], "rank 0, at tick 9, has awaited return(7)"),
        ([(9, "ballot(9)", 11_000), (9, "", 12_000)], "rank 0, at tick 9, has awaited ballot(9)"),
        (HUNG, f"rank 1, at tick 6, has awaited {LOOP}"),
    ],
)
def test_who_is_stuck_by_itself_is_named_before_who_waits_for_it(said: list[tuple[int, str, int]], named: str):
    assert verdict(*said) == f"the ring stalled: {named} for 11 s"


def test_a_hung_tick_loop_counts_as_work():
    assert LOOP in verdict((7, "", 50_000), (7, LOOP, 11_000))


def test_patience_grows_with_what_is_usual_and_never_falls_below_ten_seconds():
    assert patience_ms(0.03, 1.0) == STALL_S * 1000
    assert patience_ms(2.0, 1.0) == STALL_TICKS * 2000
    assert patience_ms(2.0, 5.0) == STALL_TICKS * 10_000
