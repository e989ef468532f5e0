"""What ranks tell of an attempt, put together: times by one clock, phases, and a state that knows most."""

import pytest

from router.membership import Watched
from router.pieces import Clock, Piece, by_room, groups_of, phases_ms, piece_of, shifted, summary, whole
from router.transfers import parse
from tandem.core.config import Group, RoleName
from tandem.runtime.history import Chunk, Entry, Landing, Mark, Outline, Rank, Track, What, Write

RID = "00000000000000ab"
ROOM = (RID, 1)
SAME = Clock(3, 5)
GROUPS = [Watched(Group(RoleName.PREFILL, "p0", (2, 1))), Watched(Group(RoleName.DECODE, "d0", (3,)))]


def outline(peer: str | None, marks: dict[What, int], state: What = What.SUBMITTED, **more: int | str) -> Outline:
    return Outline(RID, 1, peer, 8, state=state, marks=marks, **more)


def told(name: str, role: str, about: Outline | Track, clock: Clock = SAME) -> Piece:
    group, _, rank = name.partition(".")
    return piece_of(Rank(group, int(rank), role, 0), clock, about)


DECODE = {
    What.SUBMITTED: 1_000,
    What.GRANTED: 3_000,
    What.TRANSFERRED: 25_000,
    What.DECODING: 26_000,
    What.ENDED: 90_000,
}
PREFILL = {What.SUBMITTED: 900, What.BOOTSTRAPPED: 6_000, What.COMPUTING: 10_000, What.FIRST_TOKEN: 20_000}


def pair(decode_state: What = What.ENDED, prefill_state: What = What.GONE) -> list[Piece]:
    sums = {"writes": 2, "bytes": 300, "queue_us": 100, "post_us": 20, "wire_us": 3_000, "commit_us": 400}
    return [
        told("p0.0", "prefill", outline("d0", PREFILL, prefill_state, layers=2, **sums)),
        told("p0.1", "prefill", outline("d0", PREFILL, prefill_state, layers=1, **sums)),
        told("d0.0", "decode", outline("p0", DECODE, decode_state, reason="length", tokens=5, layers=3)),
    ]


def test_an_attempt_in_short():
    found = summary(ROOM, pair(), GROUPS)
    assert (found.id, found.attempt, found.groups) == (RID, 1, {"prefill": "p0", "decode": "d0"})
    assert (found.state, found.reason, found.prompt_tokens, found.tokens) == ("ended", "length", 8, 5)
    assert (found.layers, found.bytes, found.began_us) == ((3, 3), 600, 900)
    assert found.phases_ms == {
        "alloc": 2.0,
        "bootstrap": 3.0,
        "admit": 4.0,
        "compute": 10.0,
        "exposed": 5.0,
        "decode": 64.0,
        "queue": 0.05,
        "post": 0.01,
        "wire": 1.5,
        "commit": 0.2,
    }


def test_what_is_not_over_has_no_duration():
    first = told("p0.0", "prefill", outline("d0", {What.SUBMITTED: 1}))
    last = told("d0.0", "decode", outline("p0", {What.SUBMITTED: 1, What.GRANTED: 2}))
    assert phases_ms(first, last, [first.outline]) == {"alloc": 0.001}
    assert phases_ms(first, None, [first.outline]) == phases_ms(None, None, []) == {}


def test_a_transfer_that_is_over_before_token_0_exposes_nothing():
    first = told("p0.0", "prefill", outline("d0", {What.FIRST_TOKEN: 9_000}))
    last = told("d0.0", "decode", outline("p0", {What.TRANSFERRED: 8_000}))
    assert phases_ms(first, last, []) == {"exposed": 0.0}


def test_a_group_that_does_all_alone_waits_for_pages_only():
    marks = {What.SUBMITTED: 1_000, What.COMPUTING: 2_000, What.FIRST_TOKEN: 4_000, What.BOOTSTRAPPED: 3_000}
    alone = told("c0.0", "colocated", outline(None, {**marks, What.ENDED: 9_000}, What.ENDED))
    found = summary(ROOM, [alone], GROUPS)
    assert found.groups == {"colocated": "c0"}
    assert found.layers == (0, 0)
    assert found.phases_ms == {"admit": 1.0, "compute": 2.0, "decode": 5.0}


@pytest.mark.parametrize(
    ("decode", "prefill", "state"),
    [
        (What.SUBMITTED, What.SUBMITTED, "submitted"),
        (What.GRANTED, What.BOOTSTRAPPED, "bootstrapped"),
        (What.GRANTED, What.COMPUTING, "computing"),
        (What.FIRST_TOKEN, What.FIRST_TOKEN, "first token"),
        (What.DECODING, What.GONE, "decoding"),
        (What.ENDED, What.GONE, "ended"),
    ],
)
def test_the_state_is_that_of_the_group_that_is_further(decode: What, prefill: What, state: str):
    assert summary(ROOM, pair(decode, prefill), GROUPS).state == state


@pytest.mark.parametrize("heard", ["p0.0", "d0.0"])
def test_both_groups_are_named_by_either(heard: str):
    pieces = [piece for piece in pair() if piece.told_by.name == heard]
    assert groups_of(pieces) == {"prefill": "p0", "decode": "d0"}
    assert summary(ROOM, pieces, GROUPS).layers[1] == 3
    assert summary(ROOM, pieces, []).layers[1] == 0


def test_a_group_is_heard_by_the_lowest_rank_that_answers():
    late = {What.SUBMITTED: 5_000, What.GRANTED: 9_000}
    pieces = [told("d0.2", "decode", outline("p0", late)), told("d0.1", "decode", outline("p0", DECODE))]
    assert summary(ROOM, pieces, GROUPS).phases_ms["alloc"] == 2.0


# clocks


@pytest.mark.parametrize(("offset_us", "shift_us"), [(0, 0), (40, 0), (-40, 0), (41, -41), (-1_000, 1_000)])
def test_a_clock_is_corrected_when_it_certainly_differs(offset_us: int, shift_us: int):
    assert Clock(offset_us, 40).shift_us == shift_us


ENTRIES: list[tuple[Entry, Entry]] = [
    (Mark(100, What.GRANT, "x"), Mark(90, What.GRANT, "x")),
    (Chunk(100, 7, 0, 5, 200), Chunk(90, 7, 0, 5, 190)),
    (Landing(100, 2, 0, 5), Landing(90, 2, 0, 5)),
    (
        Write(100, 2, "d0.1", 3, 95, 110, 120, 130, "ok", 140, 0, 5),
        Write(90, 2, "d0.1", 3, 85, 100, 110, 120, "ok", 130, 0, 5),
    ),
]


@pytest.mark.parametrize(("entry", "moved"), ENTRIES)
def test_all_times_of_an_entry_are_shifted_but_those_of_what_has_not_happened(entry: Entry, moved: Entry):
    assert shifted(entry, -10) == moved


def test_events_of_all_ranks_are_in_order_by_one_clock():
    ahead, same = Clock(1_000, 10), Clock(5, 10)
    pieces = [
        told(
            "p0.0",
            "prefill",
            Track(outline("d0", PREFILL), [Mark(1_100, What.READY), Mark(1_300, What.SENT)], 4),
            ahead,
        ),
        told("d0.0", "decode", Track(outline("p0", DECODE), [Mark(200, What.LANDED)], 0), same),
    ]
    found = whole(ROOM, pieces, GROUPS)
    assert [(event.rank, event.entry.at_us) for event in found.events] == [("p0.0", 100), ("d0.0", 200), ("p0.0", 300)]
    assert [(rank.rank, rank.offset_us, rank.within_us, rank.shifted, rank.dropped) for rank in found.ranks] == [
        ("p0.0", 1_000, 10, True, 4),
        ("d0.0", 5, 10, False, 0),
    ]
    assert found.ranks[0].outline.marks[What.BOOTSTRAPPED] == PREFILL[What.BOOTSTRAPPED] - 1_000


def test_attempts_are_kept_apart():
    second = Outline(RID, 2)
    pieces = [*pair(), told("p0.0", "prefill", second)]
    assert {room: len(about) for room, about in by_room(pieces).items()} == {(RID, 1): 3, (RID, 2): 1}


# ids


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (RID, (RID, None)),
        (f"cmpl-{RID}", (RID, None)),
        (f"chatcmpl-{RID}", (RID, None)),
        (f"{RID}.2", (RID, 2)),
        (f" {RID.upper()} ", (RID, None)),
    ],
)
def test_what_clients_and_logs_call_a_request_is_understood(text: str, found: tuple[str, int | None]):
    assert parse(text) == found
