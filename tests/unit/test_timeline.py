"""A rank's memory of what happened to its rooms: what is told in which order, and that it stays small."""

from collections.abc import Sequence

import msgspec
import pytest

from tandem.core.config import Group, RoleName
from tandem.core.effects import Effect, Observe, Post, TellPeer
from tandem.core.events import BackedUp, Combined, Event, LayerRan, Moved, Ran, Started, Written
from tandem.core.ids import NO_SLOT, Epoch, LayerId, PageId, RankId, RequestId, Room, Slot, Tick
from tandem.core.inputs import Arrival, FirstToken, Frame, Kind, Submit, Verdict
from tandem.core.messages import Baton, Commit, Fact, Grant, Progress, Quiet
from tandem.core.plan import Ask, Emitted, Ended, Forgotten, Granted, Note, Plan, Question, Returned, Row
from tandem.core.requests import Reason, Sampling, Work
from tandem.runtime.ends import Ends
from tandem.runtime.history import Chunk, Entry, Landing, Mark, Outline, Outlines, Track, Tracks, What, Write
from tandem.runtime.tally import Tally
from tandem.runtime.timeline import HALF, MAX_ROOMS, NEWEST, Timeline
from tandem.runtime.witness import Witness

ROOM = Room(RequestId(0xAB), 1)
PROMPT = 8
BLOCK_BYTES = 100
PREFILL = (Kind.BOOTSTRAPPED, Kind.FAILED, Kind.QUIET)
DECODE = (Kind.TRANSFERRED, Kind.FAILED, Kind.QUIET, Kind.BACKED_UP)


def submit(room: Room = ROOM, peer: str | None = "d0") -> Submit:
    return Submit(Work(room, (1,) * PROMPT, 5, (), Sampling(), peer), 1_000)


def plan(*notes: Note, tick: int = 0, rows: tuple[Row, ...] = (), asks: tuple[Ask, ...] = ()) -> Plan:
    return Plan(Tick(tick), Slot(0), rows, asks, notes, 0)


def row(first: int, last: int, room: Room = ROOM) -> Row:
    return Row(room, (1,) * (last - first), first, (PageId(0),), last == PROMPT, Sampling())


def baton(*arrivals: Arrival, verdicts: tuple[Verdict, ...] = ()) -> Baton:
    return Baton(Epoch(1), Frame(Tick(0), NO_SLOT, 0, arrivals, verdicts), None)


def post(ticket: int, layer: int = 2, room: Room = ROOM) -> Post:
    blocks = ((PageId(1), PageId(5)), (PageId(2), PageId(6)))
    return Post(ticket, room, "d0", RankId(1), LayerId(layer), blocks)


def told(layer: int = 2, first: int = 0, last: int = PROMPT) -> TellPeer:
    return TellPeer("d0", RankId(1), Commit(ROOM, LayerId(layer), first, last))


def made(role: RoleName, kinds: tuple[Kind, ...], most_rooms: int = MAX_ROOMS) -> Timeline:
    return Timeline(role, kinds, BLOCK_BYTES, Tally(Group(role, "g", (2, 2)), RankId(0)), most_rooms)


@pytest.fixture
def prefill() -> Timeline:
    return made(RoleName.PREFILL, PREFILL)


@pytest.fixture
def decode() -> Timeline:
    return made(RoleName.DECODE, DECODE)


def only(timeline: Timeline) -> Track:
    (track,) = timeline.tracks(ROOM.rid)
    return track


def outline(timeline: Timeline) -> Outline:
    return only(timeline).outline


def entries(timeline: Timeline) -> Sequence[Entry]:
    return only(timeline).entries


def marks(timeline: Timeline) -> list[tuple[int, str]]:
    return [(mark.at_us, mark.what.value) for mark in entries(timeline) if isinstance(mark, Mark)]


def one_write(timeline: Timeline, ticket: int = 1, layer: int = 2) -> None:
    """Computed at 10, queued at 11, taken up at 13, begun at 16, over at 20, committed at 25."""
    timeline.on_engine(10, LayerRan(Tick(1), LayerId(layer)))
    timeline.on_effect(11, post(ticket, layer))
    timeline.on_written(ticket, 13, 16, 20)
    timeline.on_event(24, Moved(ticket, Written.OK))
    timeline.on_effect(25, told(layer))


# prefill


def test_a_prefill_rank_tells_a_request_from_its_submit_to_its_quiet(prefill: Timeline):
    prefill.on_event(1, submit())
    prefill.on_event(2, Grant("d0", ROOM, RankId(0), 0, (PageId(5),)))
    prefill.on_effect(3, Observe(ROOM, Fact(Progress.WAITING_FOR_INPUT)))
    prefill.on_event(4, Combined(ROOM, Fact(Progress.WAITING_FOR_INPUT)))
    prefill.on_plan(5, plan(rows=(row(0, PROMPT),)))
    prefill.on_plan(6, plan(Emitted(ROOM, 0, 7)))
    prefill.on_effect(7, Observe(ROOM, Fact(Progress.SUCCESS, quiet=True)))
    prefill.on_event(8, Combined(ROOM, Fact(Progress.SUCCESS, quiet=True)))
    prefill.on_plan(9, plan(Forgotten(ROOM)))
    assert marks(prefill) == [
        (1, "submitted"),
        (2, "grant"),
        (3, "ready here"),
        (4, "bootstrapped"),
        (5, "computing"),
        (6, "first token"),
        (7, "sent here"),
        (7, "quiet here"),
        (8, "quiet"),
        (9, "gone"),
    ]
    assert outline(prefill).state is What.GONE
    assert outline(prefill).peer == "d0"
    assert outline(prefill).prompt_tokens == PROMPT


def test_chunks_have_the_times_of_the_engine_s_thread(prefill: Timeline):
    prefill.on_event(1, submit())
    prefill.on_plan(2, plan(tick=4, rows=(row(0, 5),)))
    prefill.on_plan(3, plan(tick=5, rows=(row(5, PROMPT),)))
    for at_us, event in (
        (10, Started(Tick(4))),
        (20, Ran(Tick(4), ())),
        (30, Started(Tick(5))),
        (40, Ran(Tick(5), ())),
    ):
        prefill.on_engine(at_us, event)
    chunks = [entry for entry in entries(prefill) if isinstance(entry, Chunk)]
    assert chunks == [Chunk(2, 4, 0, 5, 10, 20), Chunk(3, 5, 5, PROMPT, 30, 40)]


def test_a_write_is_told_from_its_layer_to_its_commit(prefill: Timeline):
    prefill.on_event(1, submit())
    one_write(prefill)
    assert entries(prefill)[-1] == Write(11, 2, "d0.1", 2, 10, 13, 16, 20, "ok", 25, 0, PROMPT)


def test_committed_writes_add_up(prefill: Timeline):
    prefill.on_event(1, submit())
    one_write(prefill, 1, layer=2)
    one_write(prefill, 2, layer=3)
    found = outline(prefill)
    assert (found.layers, found.writes, found.bytes) == (2, 2, 4 * BLOCK_BYTES)
    assert (found.queue_us, found.post_us, found.wire_us, found.commit_us) == (2 * 3, 2 * 3, 2 * 4, 2 * 5)


def test_a_layer_counts_when_its_last_token_is_committed(prefill: Timeline):
    prefill.on_event(1, submit())
    prefill.on_effect(2, post(1))
    prefill.on_effect(2, post(2))
    for ticket, (first, last), layers in ((1, (0, 5), 0), (2, (5, PROMPT), 1)):
        prefill.on_event(3, Moved(ticket, Written.OK))
        prefill.on_effect(3, told(2, first, last))
        assert outline(prefill).layers == layers


@pytest.mark.parametrize("result", [Written.FAILED_SETTLED, Written.FAILED_UNSETTLED])
def test_a_write_that_failed_is_told_and_does_not_count(prefill: Timeline, result: Written):
    prefill.on_event(1, submit())
    prefill.on_effect(2, post(1))
    prefill.on_written(1, 3, 4, 5)
    prefill.on_event(6, Moved(1, result))
    write, failure = entries(prefill)[-2:]
    assert isinstance(write, Write)
    assert (write.result, write.committed_us) == (result.value, 0)
    assert failure == Mark(6, What.FAILED_HERE, f"layer 2: {result.value}")
    assert outline(prefill).writes == 0


def test_grants_may_come_before_the_room(prefill: Timeline):
    prefill.on_event(1, Grant("d0", ROOM, RankId(0), 0, (PageId(5),)))
    prefill.on_event(2, submit())
    assert marks(prefill) == [(1, "grant"), (2, "submitted")]


# decode


def test_a_decode_rank_tells_a_request_from_its_submit_to_its_last_token(decode: Timeline):
    ask = Ask(Question.PREALLOC, ROOM, "p0")
    decode.on_event(1, submit(peer="p0"))
    decode.on_plan(2, plan(asks=(ask,)))
    decode.on_vote(3, ask, False)
    decode.on_plan(4, plan(Returned(ROOM)))
    decode.on_plan(5, plan(asks=(ask,)))
    decode.on_vote(6, ask, True)
    decode.on_plan(7, plan(Granted(ROOM, "p0", PROMPT, 0, (PageId(0),))))
    decode.on_event(8, Commit(ROOM, LayerId(2), 0, PROMPT))
    decode.on_effect(9, Observe(ROOM, Fact(Progress.SUCCESS)))
    decode.on_event(10, FirstToken(ROOM, 7))
    decode.on_event(11, Combined(ROOM, Fact(Progress.SUCCESS)))
    decode.on_plan(12, plan(Emitted(ROOM, 0, 7)))
    decode.on_event(13, Quiet(ROOM))
    for index in range(1, 5):
        decode.on_plan(13 + index, plan(Emitted(ROOM, index, 7)))
    decode.on_plan(18, plan(Emitted(ROOM, 5, 7), Ended(ROOM, Reason.LENGTH), Forgotten(ROOM)))
    assert marks(decode) == [
        (1, "submitted"),
        (2, "asked"),
        (3, "voted"),
        (4, "refused"),
        (5, "asked"),
        (6, "voted"),
        (7, "granted"),
        (9, "landed here"),
        (10, "first token"),
        (11, "transferred"),
        (12, "decoding"),
        (13, "quiet"),
        (14, "second token"),
        (18, "ended"),
        (18, "gone"),
    ]
    assert [mark.detail for mark in entries(decode) if isinstance(mark, Mark) and mark.what is What.VOTED] == [
        "prealloc no",
        "prealloc yes",
    ]
    assert Landing(8, 2, 0, PROMPT) in entries(decode)
    found = outline(decode)
    assert (found.state, found.reason, found.tokens, found.layers) == (What.GONE, "length", 6, 1)


def test_a_tick_of_decode_leaves_nothing_behind(decode: Timeline):
    decode.on_event(1, submit(peer="p0"))
    decode.on_plan(2, plan(Emitted(ROOM, 0, 7)))
    decode.on_plan(3, plan(Emitted(ROOM, 1, 7)))
    before = msgspec.json.encode(only(decode))
    for tick in range(3, 300):
        decode.on_plan(tick, plan(Emitted(ROOM, tick, 7), tick=tick, rows=(row(tick, tick + 1),)))
        decode.on_engine(tick, Started(Tick(tick)))
        decode.on_engine(tick, Ran(Tick(tick), ()))
    assert msgspec.json.encode(only(decode)) == before


def test_the_first_copy_to_host_memory_is_no_second_landing(decode: Timeline):
    decode.on_event(1, submit(peer="p0"))
    decode.on_effect(2, Observe(ROOM, Fact(Progress.SUCCESS)))
    decode.on_engine(3, BackedUp(ROOM))
    decode.on_effect(4, Observe(ROOM, Fact(Progress.SUCCESS, backups=1)))
    assert marks(decode)[1:] == [(2, "landed here"), (3, "backed up here")]


# all ranks


def test_a_rank_behind_the_first_hears_of_requests_and_verdicts_by_the_baton():
    timeline = made(RoleName.DECODE, DECODE)
    timeline.on_event(1, baton(submit(peer="p0")))
    verdicts = (Verdict(ROOM, Kind.TRANSFERRED), Verdict(ROOM, Kind.BACKED_UP, 1))
    timeline.on_event(2, baton(FirstToken(ROOM, 7), verdicts=verdicts))
    assert marks(timeline) == [(1, "submitted"), (2, "first token"), (2, "transferred")]


def test_a_request_that_is_refused_at_once_has_an_end(prefill: Timeline):
    prefill.on_event(1, baton(submit()))
    prefill.on_plan(2, plan(Ended(ROOM, Reason.QUEUE_FULL), Forgotten(ROOM)))
    assert marks(prefill) == [(1, "submitted"), (2, "ended"), (2, "gone")]
    assert outline(prefill).reason == "queue_full"


def test_a_verdict_that_is_heard_again_and_one_for_the_other_role_say_nothing(prefill: Timeline):
    prefill.on_event(1, submit())
    for now_us in (2, 3):
        prefill.on_event(now_us, Combined(ROOM, Fact(Progress.SUCCESS)))
    prefill.on_event(4, Combined(ROOM, None))
    assert marks(prefill) == [(1, "submitted"), (2, "bootstrapped")]


def test_a_request_that_is_submitted_twice_was_submitted_once(prefill: Timeline):
    prefill.on_event(1, submit())
    prefill.on_event(2, submit())
    assert marks(prefill) == [(1, "submitted")]


@pytest.mark.parametrize(
    "effects_and_events",
    [
        [Commit(ROOM, LayerId(2), 0, PROMPT), FirstToken(ROOM, 7), Quiet(ROOM), Combined(ROOM, Fact(failed=True))],
        [baton(FirstToken(ROOM, 7), verdicts=(Verdict(ROOM, Kind.FAILED),))],
        [Observe(ROOM, Fact(failed=True))],
    ],
)
def test_what_comes_late_about_a_room_that_nobody_remembers_is_not_kept(
    decode: Timeline, effects_and_events: list[Event | Effect]
):
    for each in effects_and_events:
        if isinstance(each, Observe):
            decode.on_effect(1, each)
        else:
            decode.on_event(1, each)
    decode.on_plan(2, plan(Ended(ROOM, Reason.DEADLINE), Forgotten(ROOM)))
    assert len(decode) == 0


def test_every_attempt_is_told(prefill: Timeline):
    for attempt in (1, 2):
        prefill.on_event(attempt, submit(Room(ROOM.rid, attempt)))
    prefill.on_event(3, submit(Room(RequestId(5), 1)))
    assert [track.outline.attempt for track in prefill.tracks(ROOM.rid)] == [1, 2]
    assert prefill.tracks(RequestId(6)) == []


# bounds


def test_the_oldest_room_goes_for_one_more():
    timeline = made(RoleName.PREFILL, PREFILL, 2)
    rooms = [Room(RequestId(number), 1) for number in (1, 2, 3)]
    for room in rooms:
        timeline.on_event(1, submit(room))
    assert len(timeline) == 2
    assert [found.rid for found in timeline.outlines()] == [f"{3:016x}", f"{2:016x}"]
    timeline.on_plan(2, plan(rows=(row(0, PROMPT, rooms[0]), row(0, PROMPT, rooms[1]))))
    assert [track.outline.state for room in rooms for track in timeline.tracks(room.rid)] == [
        What.COMPUTING,
        What.SUBMITTED,
    ]


def test_only_rooms_that_have_changed_since_are_told(prefill: Timeline, decode: Timeline):
    other = Room(RequestId(2), 1)
    prefill.on_event(1, submit())
    prefill.on_event(2, submit(other))
    one_write(prefill)  # of the first one: its commit leaves at 25
    assert [found.rid for found in prefill.outlines(2)] == [f"{2:016x}", f"{ROOM.rid:016x}"]
    assert [found.rid for found in prefill.outlines(3)] == [f"{ROOM.rid:016x}"]
    assert prefill.outlines(100) == []
    decode.on_event(1, submit())
    decode.on_event(7, Commit(ROOM, LayerId(2), 0, PROMPT))
    assert [found.layers for found in decode.outlines(7)] == [1], "a landing changes it, too"


def test_a_write_of_a_room_that_had_to_go_still_ends():
    timeline = made(RoleName.PREFILL, PREFILL, 1)
    timeline.on_event(1, submit())
    timeline.on_effect(2, post(1))
    timeline.on_event(3, submit(Room(RequestId(2), 1)))
    timeline.on_effect(4, post(2))
    for ticket in (1, 2):
        timeline.on_written(ticket, 5, 6, 7)
        timeline.on_event(8, Moved(ticket, Written.OK))
        timeline.on_effect(8, told())
    assert timeline.tracks(ROOM.rid) == []


def test_an_overview_is_of_the_newest_rooms():
    timeline = made(RoleName.PREFILL, PREFILL)
    for number in range(MAX_ROOMS + 5):
        timeline.on_event(1, submit(Room(RequestId(number), 1)))
    assert len(timeline) == MAX_ROOMS
    assert [int(found.rid, 16) for found in timeline.outlines()] == list(
        range(MAX_ROOMS + 4, MAX_ROOMS + 4 - NEWEST, -1)
    )


def test_the_middle_of_a_long_story_is_dropped_and_its_sums_are_not(prefill: Timeline):
    prefill.on_event(1, submit())
    for ticket in range(3 * HALF):
        one_write(prefill, ticket, layer=ticket)
    track = only(prefill)
    assert len(track.entries) == 2 * HALF
    assert track.dropped == 3 * HALF + 1 - 2 * HALF
    layers = [entry.layer for entry in track.entries if isinstance(entry, Write)]
    assert layers == [*range(HALF - 1), *range(2 * HALF, 3 * HALF)]
    assert track.outline.writes == 3 * HALF


@pytest.mark.parametrize(
    ("count", "kept", "dropped"),
    [(0, [], 0), (3, [0, 1, 2], 0), (4, [0, 1, 2, 3], 0), (5, [0, 1, 3, 4], 1), (9, [0, 1, 7, 8], 5)],
)
def test_ends_keep_the_first_and_the_last(count: int, kept: list[int], dropped: int):
    ends: Ends[int] = Ends(2)
    for number in range(count):
        ends.add(number)
    assert (ends.items(), ends.dropped) == (kept, dropped)


# in JSON


def test_what_a_rank_tells_is_read_as_it_was(prefill: Timeline):
    prefill.on_event(1, submit())
    prefill.on_plan(2, plan(rows=(row(0, PROMPT),)))
    one_write(prefill)
    who = ("p0", 1, "prefill", 99)
    everything = Tracks(*who, prefill.tracks(ROOM.rid))
    assert msgspec.json.decode(msgspec.json.encode(everything), type=Tracks) == everything
    overview = Outlines(*who, prefill.outlines())
    assert msgspec.json.decode(msgspec.json.encode(overview), type=Outlines) == overview
    assert overview.name == "p0.1"


# the witness


class Told:
    """A courier whose answers a test knows."""

    def on_plan(self, plan: Plan) -> list[Effect]:
        return [Observe(ROOM, Fact(Progress.WAITING_FOR_INPUT))]

    def on_event(self, event: Event) -> list[Effect]:
        return [post(1)]

    def answer(self, ask: Ask) -> bool:
        return ask.room == ROOM

    def open_rooms(self) -> int:
        return 3


def test_a_witness_tells_its_timeline_and_changes_nothing(prefill: Timeline):
    prefill.on_event(1, submit())
    witness, courier = Witness(Told(), prefill), Told()
    known, ran = plan(Emitted(ROOM, 0, 7)), LayerRan(Tick(1), LayerId(2))
    asks = [Ask(Question.PREALLOC, room, "p0") for room in (ROOM, Room(RequestId(5), 1))]
    assert witness.on_plan(known) == courier.on_plan(known)
    assert witness.on_event(ran) == courier.on_event(ran)
    assert [witness.answer(ask) for ask in asks] == [True, False]
    assert witness.open_rooms() == courier.open_rooms()
    assert [what for _, what in marks(prefill)] == ["submitted", "first token", "ready here", "voted"]
    assert isinstance(entries(prefill)[-2], Write)
