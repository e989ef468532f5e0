"""The ring protocol of single ranks: what they pass on, when, and what makes them stop."""

import msgspec
import pytest

from tandem.assembly import build_rank, build_scheduler
from tandem.core.chunking import ENOUGH
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Compile, Effect, Forget, Launch, Observe, SendHidden, SendNext, TellPeer, TellRouter
from tandem.core.errors import Divergence
from tandem.core.events import Combined, Compiled, Event, PeerLost, PeerOpened, Ran, Started, Woke
from tandem.core.ids import Epoch, LayerId, PageId, RankId, RequestId, Room, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Knobs, Submit, Verdict
from tandem.core.messages import (
    BallotBack,
    Baton,
    Cancel,
    Cancelled,
    Commit,
    Done,
    Fact,
    Grant,
    Hello,
    Hidden,
    Progress,
    Quiet,
    Region,
    Return,
    Token,
)
from tandem.core.rank import Place, Rank
from tandem.core.recorder import Entry
from tandem.core.requests import Logprobs, Reason, Sampling, Work

EPOCH, OLD = Epoch(5), Epoch(4)
ROOM, OTHER = Room(RequestId(1), 1), Room(RequestId(2), 1)
LIMITS = Limits(page_size=4, num_pages=32, context=64, chunked_prefill_size=4, max_prefill_tokens=8)


def ring(size: int, role: RoleName = RoleName.PREFILL, limits: Limits = LIMITS) -> list[Rank]:
    group = Group(role, "p0" if role is RoleName.PREFILL else "d0", (1,) * size)
    return [build_rank(group, RankId(rank), EPOCH, limits) for rank in range(size)]


def submit(room: Room = ROOM, prompt: int = 4, max_tokens: int = 1, peer: str | None = None) -> Submit:
    return Submit(Work(room, tuple(range(prompt)), max_tokens, (), Sampling(), peer), 60_000)


def only(effects: list[Effect], kind: type) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: list[Effect], kind: type) -> list:
    return [effect.message for effect in only(effects, SendNext) if isinstance(effect.message, kind)]


def running(size: int = 2, prompt: int = 4) -> tuple[list[Rank], list[Effect]]:
    """A prefill ring whose rank 0 has just launched a request: the ranks, and that rank's effects."""
    ranks = ring(size)
    return ranks, ranks[0].on(submit(prompt=prompt), 0)


# one tick


def test_a_tick_opens_at_once_for_a_new_request():
    ranks, effects = running()
    batons = sent(effects, Baton)
    assert [baton.frame.tick for baton in batons] == list(range(len(batons)))
    assert batons[0].frame.arrivals == (submit(),)
    assert all(baton.epoch == EPOCH for baton in batons)
    assert ranks[0].scheduler.tick == batons[-1].frame.tick


def test_nothing_to_do_opens_no_tick():
    (rank,) = ring(1)
    assert rank.on(Woke(), 1_000) == []
    assert rank.scheduler.tick == -1
    assert rank.wake_ms() is None


def test_the_baton_is_sent_before_the_steps_effects():
    """Stage skew is one hop, not one tick of CPU."""
    _, effects = running()
    launch = next(index for index, effect in enumerate(effects) if isinstance(effect, Launch))
    baton = max(index for index, effect in enumerate(effects[:launch]) if isinstance(effect, SendNext))
    assert effects[baton].message.frame.tick == effects[launch].plan.tick
    ranks = ring(3)
    for message in sent(effects, Baton):
        passed = ranks[1].on(message, 0)
        assert passed[0] == SendNext(message)


def test_the_next_tick_waits_until_the_own_stage_has_begun():
    ranks, effects = running(prompt=12)
    (launch,) = only(effects, Launch)
    assert ranks[0].on(submit(OTHER), 2) == []
    assert ranks[0].wake_ms() is None
    assert sent(ranks[0].on(Started(launch.plan.tick), 3), Baton)


def test_every_other_rank_launches_when_plan_and_hidden_states_are_both_there():
    ranks, effects = running()
    batons = sent(effects, Baton)
    (launch,) = only(effects, Launch)
    header = Hidden(EPOCH, launch.plan.tick, 4, launch.plan.digest)
    for baton in batons:
        assert not only(ranks[1].on(baton, 0), Launch)
    assert ranks[1].awaiting() == f"hidden({launch.plan.tick})"
    assert only(ranks[1].on(header, 0), Launch) == [launch]
    assert ranks[1].awaiting() == f"ran({launch.plan.tick})"
    ranks[1].on(Started(launch.plan.tick), 0)
    ranks[1].on(Ran(launch.plan.tick, ((ROOM, (7,)),)), 0)
    assert ranks[1].awaiting() is None


def test_rank_0_awaits_its_own_forward_before_it_awaits_the_others():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    assert ranks[0].awaiting() == f"ran({launch.plan.tick})"
    ranks[0].on(Started(launch.plan.tick), 1)
    ranks[0].on(Ran(launch.plan.tick, ()), 1)
    assert ranks[0].awaiting() == f"return({launch.plan.tick})"


def test_hidden_states_may_come_before_their_baton():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    assert ranks[1].on(Hidden(EPOCH, launch.plan.tick, 4, launch.plan.digest), 0) == []
    launched = [each for baton in sent(effects, Baton) for each in only(ranks[1].on(baton, 0), Launch)]
    assert launched == [launch]


def test_computed_hidden_states_carry_the_plans_digest():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    out = ranks[0].on(Ran(launch.plan.tick, ()), 1)
    assert only(out, SendHidden) == [SendHidden(Hidden(EPOCH, launch.plan.tick, 4, launch.plan.digest))]


def test_with_one_stage_a_request_runs_without_a_message():
    ranks, effects = running(1)
    (launch,) = only(effects, Launch)
    assert not only(effects, SendNext)
    ranks[0].on(Started(launch.plan.tick), 1)
    out = ranks[0].on(Ran(launch.plan.tick, ((ROOM, (7,)),)), 2)
    assert only(out, TellRouter) == [TellRouter(Token(ROOM, 0, 7)), TellRouter(Done(ROOM, Reason.LENGTH))]
    assert only(out, Forget) == [Forget(ROOM)]
    assert not only(out, SendNext)
    assert ranks[0].awaiting() is None


# divergence


@pytest.mark.parametrize(
    "wrong",
    [{"digest": 1}, {"tick": Tick(7)}, {"rows": 5}],
    ids=["digest", "tick", "rows"],
)
def test_a_plan_that_the_rank_before_does_not_share_is_never_launched(wrong: dict):
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    header = msgspec.structs.replace(Hidden(EPOCH, launch.plan.tick, 4, launch.plan.digest), **wrong)
    for baton in sent(effects, Baton):
        ranks[1].on(baton, 0)
    with pytest.raises(Divergence, match="rank 1 plans"):
        ranks[1].on(header, 0)


def test_a_rank_whose_state_differs_is_caught_at_the_next_hidden_states():
    ranks, effects = running()
    ranks[1].scheduler.role.pool.allocate(OTHER, 1)
    (launch,) = only(effects, Launch)
    for baton in sent(effects, Baton):
        ranks[1].on(baton, 0)
    with pytest.raises(Divergence):
        ranks[1].on(Hidden(EPOCH, launch.plan.tick, 4, launch.plan.digest), 0)


def test_a_gap_and_a_repeat_in_the_batons_end_the_epoch():
    ranks, effects = running()
    (first,) = sent(effects, Baton)
    late = msgspec.structs.replace(first, frame=msgspec.structs.replace(first.frame, tick=Tick(1)))
    with pytest.raises(Divergence, match="frame of tick 1 after tick -1"):
        ranks[1].on(late, 0)
    ranks[1].on(first, 0)
    with pytest.raises(Divergence, match="frame of tick 0 after tick 0"):
        ranks[1].on(first, 0)


@pytest.mark.parametrize("ballot", [0, 1])
def test_a_ballot_without_a_question_ends_the_epoch(ballot: int):
    ranks, effects = running()
    baton = msgspec.structs.replace(sent(effects, Baton)[0], ballot=ballot)
    with pytest.raises(Divergence, match="ballot"):
        ranks[1].on(baton, 0)


def test_a_question_without_a_ballot_ends_the_epoch():
    ranks = ring(2, RoleName.DECODE)
    asking, voting = sent(ranks[0].on(submit(peer="p0"), 0), Baton)
    assert voting.ballot is not None
    ranks[1].on(asking, 0)
    with pytest.raises(Divergence, match="carries ballot None"):
        ranks[1].on(msgspec.structs.replace(voting, ballot=None), 0)


def test_a_return_with_another_digest_reaches_no_frame_and_no_router():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    with pytest.raises(Divergence, match="rank 0 expects"):
        ranks[0].on(Return(EPOCH, launch.plan.tick, launch.plan.digest ^ 1, ((ROOM, (7,)),)), 1)


def test_a_return_that_is_not_the_next_one_ends_the_epoch():
    ranks, effects = running(prompt=8)
    (first,) = only(effects, Launch)
    (second,) = only(ranks[0].on(Started(first.plan.tick), 1), Launch)
    with pytest.raises(Divergence):
        ranks[0].on(Return(EPOCH, second.plan.tick, second.plan.digest, ((ROOM, (7,)),)), 1)


def test_a_harvest_that_names_another_room_ends_the_epoch():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    ranks[0].on(Started(launch.plan.tick), 1)
    with pytest.raises(Divergence, match="other rooms"):
        ranks[0].on(Return(EPOCH, launch.plan.tick, launch.plan.digest, ((OTHER, (7,)),)), 1)


def test_a_ballot_that_nobody_asked_for_ends_the_epoch():
    ranks = ring(2)
    with pytest.raises(Divergence, match="no vote of that tick is open"):
        ranks[0].on(BallotBack(EPOCH, Tick(3), 1), 0)


def test_what_another_epoch_says_is_counted_and_changes_nothing():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    tick, digest = launch.plan.tick, launch.plan.digest
    batons = sent(effects, Baton)
    strangers = [
        msgspec.structs.replace(batons[0], epoch=OLD),
        Hidden(OLD, tick, 4, digest),
        Return(OLD, tick, digest, ((ROOM, (7,)),)),
        BallotBack(OLD, tick, 1),
    ]
    for rank in ranks:
        stepped = rank.scheduler.tick
        assert [each for message in strangers for each in rank.on(message, 0)] == []
        assert rank.stale == 4
        assert rank.scheduler.tick == stepped
    for baton in batons:
        ranks[1].on(baton, 0)


# returns


def last_of_three_chunks() -> tuple[Rank, list, list[Effect]]:
    """The last rank with three launched chunks of a prompt, of which only the third samples."""
    ranks, effects = running(2, prompt=12)
    batons, launches = sent(effects, Baton), only(effects, Launch)
    while len(launches) < 3:
        more = ranks[0].on(Started(launches[-1].plan.tick), 2)
        batons += sent(more, Baton)
        launches += only(more, Launch)
    out = []
    for baton in batons:
        out += ranks[1].on(baton, 0)
    for launch in launches:
        out += ranks[1].on(Hidden(EPOCH, launch.plan.tick, launch.plan.tokens, launch.plan.digest), 0)
    return ranks[1], launches, out


def test_returns_leave_in_tick_order_and_chunks_that_sample_nothing_when_they_begin():
    """Else a slow last stage would let a whole prompt's hidden states pile up in front of it."""
    rank, launches, out = last_of_three_chunks()
    ticks = [launch.plan.tick for launch in launches]
    assert not sent(out, Return)
    for launch in launches[:2]:
        (back,) = sent(rank.on(Started(launch.plan.tick), 0), Return)
        assert back == Return(EPOCH, launch.plan.tick, launch.plan.digest, ())
        assert not sent(rank.on(Ran(launch.plan.tick, ()), 0), Return)
    assert not sent(rank.on(Started(ticks[2]), 0), Return)
    (back,) = sent(rank.on(Ran(ticks[2], ((ROOM, (7,)),)), 0), Return)
    assert back == Return(EPOCH, ticks[2], launches[2].plan.digest, ((ROOM, (7,)),))


def test_a_return_that_is_ready_waits_for_the_one_before_it():
    group = Group(RoleName.PREFILL, "p0", (1, 1))
    ranks = [build_rank(group, RankId(rank), EPOCH, LIMITS) for rank in (0, 1)]
    effects = ranks[0].on(submit(), 0) + ranks[0].on(submit(OTHER, prompt=8), 0)
    effects += ranks[0].on(Started(only(effects, Launch)[0].plan.tick), 0)
    for baton in sent(effects, Baton):
        ranks[1].on(baton, 0)
    sampling, chunk = only(effects, Launch)
    out = []
    for launch in (sampling, chunk):
        out += ranks[1].on(Hidden(EPOCH, launch.plan.tick, launch.plan.tokens, launch.plan.digest), 0)
    out += ranks[1].on(Started(sampling.plan.tick), 0) + ranks[1].on(Started(chunk.plan.tick), 0)
    assert not sent(out, Return), "the chunk samples nothing, but the tick before it has not returned"
    backs = sent(ranks[1].on(Ran(sampling.plan.tick, ((ROOM, (7,)),)), 0), Return)
    assert [back.tick for back in backs] == [sampling.plan.tick, chunk.plan.tick]


# votes


def hello(rank: int, size: int) -> Hello:
    return Hello("p0", RankId(rank), size, 1, "print", "sim", "", Region(0, rank, rank + 1, 32, 64))


def test_every_ranks_answer_is_folded_and_the_last_one_sends_the_ballot_back():
    ranks = ring(3, RoleName.DECODE)
    for rank in ranks[:2]:
        rank.on(PeerOpened(hello(rank.place.rank, 3)), 0)
    asking, voting = sent(ranks[0].on(submit(peer="p0"), 0), Baton)
    assert asking.ballot is None
    assert voting.ballot == 1
    for rank, ballot in ((ranks[1], 1), (ranks[2], None)):
        rank.on(asking, 0)
        out = rank.on(voting, 0)
        if ballot is not None:
            (voting,) = sent(out, Baton)
            assert voting.ballot == ballot
    assert sent(out, BallotBack) == [BallotBack(EPOCH, voting.frame.tick, 0)]


def test_a_vote_that_says_no_is_repeated_only_after_a_pause():
    (rank,) = ring(1, RoleName.DECODE)
    rank.on(submit(peer="p0"), 0)
    assert rank.wake_ms() == 50
    ticks = rank.scheduler.tick
    for now_ms in range(1, 50, 7):
        assert rank.on(Woke(), now_ms) == []
    assert rank.scheduler.tick == ticks
    rank.on(Woke(), 50)
    assert rank.scheduler.tick > ticks
    assert rank.wake_ms() == 100


# what is said to others


def test_a_room_that_was_never_here_is_answered_quiet():
    ranks = ring(2)
    out = ranks[0].on(Cancelled("d0", ROOM, Reason.QUEUE_FULL), 0)
    assert only(out, TellPeer) == [TellPeer("d0", RankId(0), Quiet(ROOM))]


def test_a_request_that_comes_after_its_end_is_ignored_and_forgotten():
    ranks = ring(2)
    ranks[0].on(Cancelled("d0", ROOM, Reason.QUEUE_FULL), 0)
    out = ranks[0].on(submit(peer="d0"), 1)
    assert only(out, TellRouter) == []
    assert only(out, Forget) == [Forget(ROOM)], "the driver keeps no way to its router"
    assert not ranks[0].scheduler.role.knows(ROOM)


def test_a_request_is_ignored_that_comes_in_the_same_frame_as_its_end():
    ranks, effects = running()
    assert ranks[0].on(Cancelled("d0", OTHER, Reason.CLIENT_GONE), 1) == []
    assert ranks[0].on(submit(OTHER, peer="d0"), 1) == []
    out = ranks[0].on(Started(only(effects, Launch)[0].plan.tick), 2)
    (baton,) = sent(out, Baton)
    assert baton.frame.arrivals == (Abort(OTHER, Reason.CLIENT_GONE, "d0"), submit(OTHER, peer="d0"))
    assert not ranks[0].scheduler.role.knows(OTHER)


def test_a_refused_request_is_answered_once_even_if_it_comes_twice_in_one_frame():
    ranks, effects = running()
    for _ in range(2):
        ranks[0].on(submit(OTHER, prompt=100, peer="d0"), 1)
    out = ranks[0].on(Started(only(effects, Launch)[0].plan.tick), 2)
    assert only(out, TellRouter) == [TellRouter(Done(OTHER, Reason.TOO_LARGE))]


def test_only_rank_0_speaks_for_the_group():
    ranks = ring(2)
    batons = sent(ranks[0].on(Cancelled("d0", ROOM, Reason.QUEUE_FULL), 0), Baton)
    out = [each for baton in batons for each in ranks[1].on(baton, 0)]
    assert only(out, TellPeer) == []
    assert only(out, Forget) == [Forget(ROOM)]


def test_an_abort_of_another_attempt_touches_nothing():
    ranks, _ = running()
    ranks[0].on(Cancel(Room(ROOM.rid, 2), Reason.CLIENT_GONE), 2)
    assert ranks[0].scheduler.role.knows(ROOM)


def test_quiet_that_came_before_the_room_is_asked_for_again():
    """With a full frame between them, a cancel can come so late that its quiet was dropped as one for no room."""
    decode = ring(1, RoleName.DECODE)[0]
    decode.on(PeerOpened(hello(0, 1)), 0)
    decode.on(submit(peer="p0"), 0)
    role = decode.scheduler.role
    assert role.pool.free < LIMITS.num_pages
    out = decode.on(Cancelled("p0", ROOM, Reason.CLIENT_GONE), 1)
    assert TellPeer("p0", RankId(0), Cancelled("d0", ROOM, Reason.PEER_ENDED)) in out
    assert role.pool.counts()["quarantined"] == 1
    decode.on(Quiet(ROOM), 2)
    assert role.pool.free == LIMITS.num_pages


@pytest.mark.parametrize(
    ("incarnation", "freed"), [(1, LIMITS.num_pages), (2, LIMITS.num_pages - 1)], ids=["the same", "its successor"]
)
def test_quiet_counts_only_from_the_incarnation_that_was_granted_the_pages(incarnation: int, freed: int):
    """The next one has never heard of the room. What the dead one had posted may still land, until a fence."""
    decode = ring(1, RoleName.DECODE)[0]
    met = hello(0, 1)
    decode.on(PeerOpened(met), 0)
    decode.on(submit(peer="p0"), 0)
    decode.on(PeerLost("p0", RankId(0)), 1)
    decode.on(PeerOpened(msgspec.structs.replace(met, incarnation=incarnation)), 2)
    decode.on(Cancel(ROOM, Reason.CLIENT_GONE), 3)
    decode.on(Quiet(ROOM), 4)
    assert decode.scheduler.role.pool.free == freed
    decode.on(Combined(ROOM, Fact(fenced=True)), 5)
    assert decode.scheduler.role.pool.free == LIMITS.num_pages


def test_token_0_is_repeated_by_the_decode_group():
    decode = ring(1, RoleName.DECODE)[0]
    decode.on(PeerOpened(hello(0, 1)), 0)
    decode.on(submit(peer="p0", max_tokens=3), 0)
    decode.on(FirstToken(ROOM, 9), 1)
    out = decode.on(Combined(ROOM, Fact(Progress.SUCCESS)), 2)
    assert only(out, TellRouter) == [TellRouter(Token(ROOM, 0, 9))]
    (launch,) = only(out, Launch)
    assert [(row.tokens, row.start) for row in launch.plan.rows] == [((9,), 4)]


def test_the_flight_record_holds_every_frame_with_its_digest():
    ranks, effects = running()
    recorded = ranks[0].recorder.since(Tick(-1))
    entries = [msgspec.msgpack.decode(each.entry, type=Entry) for each in recorded]
    assert [entry.frame for entry in entries] == [baton.frame for baton in sent(effects, Baton)]
    assert [entry.digest for entry in entries] == [each.digest for each in recorded]
    assert entries[-1].digest == ranks[0].scheduler.digest


def test_a_frame_that_stops_the_rank_is_in_the_flight_record():
    ranks, effects = running()
    (first,) = sent(effects, Baton)
    late = msgspec.structs.replace(first, frame=msgspec.structs.replace(first.frame, tick=Tick(1)))
    with pytest.raises(Divergence):
        ranks[1].on(late, 0)
    unfinished = ranks[1].recorder.unfinished()
    assert unfinished is not None
    assert msgspec.msgpack.decode(unfinished, type=Entry) == Entry(late.frame, None)


def test_what_is_in_hand_waits_for_hidden_states_or_for_its_forward():
    ranks, effects = running()
    (launch,) = only(effects, Launch)
    for baton in sent(effects, Baton):
        ranks[1].on(baton, 0)
    assert ranks[0].in_hand() == ranks[1].in_hand() == [launch.plan]
    ranks[1].on(Hidden(EPOCH, launch.plan.tick, 4, launch.plan.digest), 0)
    assert ranks[1].in_hand() == [launch.plan]
    ranks[1].on(Started(launch.plan.tick), 0)
    ranks[1].on(Ran(launch.plan.tick, ((ROOM, (7,)),)), 0)
    assert ranks[1].in_hand() == []


# dynamic chunking


TUNED = msgspec.structs.replace(LIMITS, chunked_prefill_size=1, max_prefill_tokens=1, dynamic_chunking=True)


def learnt(rank: Rank, effects: list[Effect]) -> list[Knobs]:
    """Run what a ring of one has launched to its end, later tokens more slowly; the knobs that come of it."""
    launches, now_ms = only(effects, Launch), 0
    while launches:
        plan = launches.pop(0).plan
        out = rank.on(Started(plan.tick), now_ms)
        now_ms += 10 + plan.rows[0].start
        tokens = tuple((row.room, (7,)) for row in plan.rows if row.samples)
        launches += only(out + rank.on(Ran(plan.tick, tokens), now_ms), Launch)
    entries = [msgspec.msgpack.decode(recorded.entry, type=Entry) for recorded in rank.recorder.since(Tick(-1))]
    return [arrival for entry in entries for arrival in entry.frame.arrivals if isinstance(arrival, Knobs)]


@pytest.mark.parametrize("role", [RoleName.PREFILL, RoleName.COLOCATED])
def test_a_group_that_computes_prompts_learns_how_long_its_chunks_should_be(role: RoleName):
    (rank,) = ring(1, role, TUNED)
    assert learnt(rank, rank.on(submit(prompt=60), 0)) == [Knobs(chunk_table=(1,))]


def test_a_decode_group_has_no_chunks_to_learn_about():
    (rank,) = ring(1, RoleName.DECODE, TUNED)
    rank.on(PeerOpened(hello(0, 1)), 0)
    rank.on(submit(peer="p0", max_tokens=60), 0)
    rank.on(FirstToken(ROOM, 9), 0)
    effects = rank.on(Combined(ROOM, Fact(Progress.SUCCESS)), 0)
    assert learnt(rank, effects) == []
    assert rank.scheduler.tick > ENOUGH


# facts that stay here


class Observer:
    """A courier that observes these facts of a room, one with each event."""

    def __init__(self, *facts: Fact) -> None:
        self._facts = list(facts)

    def on_event(self, event: Event) -> list[Effect]:
        return [Observe(ROOM, self._facts.pop(0))]


OBSERVED = (
    Fact(Progress.WAITING_FOR_INPUT),
    Fact(Progress.TRANSFERRING),
    Fact(Progress.SUCCESS),
    Fact(failed=True),
    Fact(quiet=True),
    Fact(backups=1),
)


def observations(transfer_consensus: str) -> tuple[Rank, list[Effect]]:
    """A rank that has observed everything there is, and what came of it."""
    limits = msgspec.structs.replace(LIMITS, transfer_consensus=transfer_consensus)
    group = Group(RoleName.PREFILL, "p0", (1, 1))
    observer = Observer(*OBSERVED)
    rank = Rank(Place("p0", RankId(1), 2, EPOCH), build_scheduler(group, limits), observer, limits)  # type: ignore[arg-type]
    return rank, [effect for _ in OBSERVED for effect in rank.on(Woke(), 0)]


def test_the_store_hears_of_everything():
    rank, effects = observations("store")
    assert effects == [Observe(ROOM, fact) for fact in OBSERVED]
    assert rank.facts[ROOM] == Fact(Progress.SUCCESS, failed=True, quiet=True, backups=1)


def test_under_ring_consensus_the_store_hears_of_bootstrap_and_backups_only():
    rank, effects = observations("ring")
    waiting = Fact(Progress.WAITING_FOR_INPUT)
    assert effects == [Observe(ROOM, waiting), Observe(ROOM, msgspec.structs.replace(waiting, backups=1))]
    assert rank.facts[ROOM] == Fact(Progress.SUCCESS, failed=True, quiet=True, backups=1)


def settled(ranks: list[Rank], effects: list[Effect], now_ms: int) -> tuple[list[Effect], list[int]]:
    """Carry messages around a ring of two: what rank 0 does besides, and the outcomes of the votes."""
    done, outcomes = [], []
    while effects:
        effect = effects.pop(0)
        if not isinstance(effect, SendNext):
            done.append(effect)
            continue
        backs = [SendNext(back) for back in sent(ranks[1].on(effect.message, now_ms), BallotBack)]
        for back in backs:
            outcomes.append(back.message.yes)
            effects += ranks[0].on(back.message, now_ms)
    return done, outcomes


@pytest.fixture
def polling() -> list[Rank]:
    """Two decode ranks that wait for the KV of a request, and ask each other about it."""
    ranks = ring(2, RoleName.DECODE, msgspec.structs.replace(LIMITS, transfer_consensus="ring"))
    for rank in ranks:
        for peer in range(2):
            rank.on(PeerOpened(hello(peer, 2)), 0)
    settled(ranks, ranks[0].on(submit(peer="p0", max_tokens=3), 0), 0)
    return ranks


def poll(ranks: list[Rank]) -> tuple[list[Effect], list[int]]:
    """Wake rank 0 when it is time to ask again."""
    now_ms = ranks[0].wake_ms()
    assert now_ms is not None
    assert now_ms < 1_000
    return settled(ranks, ranks[0].on(Woke(), now_ms), now_ms)


def test_polls_are_answered_from_what_each_rank_has_observed(polling: list[Rank]):
    """Bit 0 is `intact`, bit 1 is `landed`."""
    assert poll(polling)[1] == [0b01]
    assert polling[0].on(Commit(ROOM, LayerId(0), 0, 4), 0) == [Observe(ROOM, Fact(Progress.WAITING_FOR_INPUT))]
    assert polling[0].facts[ROOM].progress is Progress.SUCCESS
    assert poll(polling)[1] == [0b01], "one rank is not all"
    polling[1].on(Commit(ROOM, LayerId(1), 0, 4), 0)
    assert poll(polling)[1] == [0b11, 0b1], "until the first token is here it may be lost"
    (launch,) = only(settled(polling, polling[0].on(FirstToken(ROOM, 9), 0), 0)[0], Launch)
    assert [row.room for row in launch.plan.rows] == [ROOM]


def test_a_poll_hears_of_one_ranks_failure(polling: list[Rank]):
    polling[1].on(PeerLost("p0", RankId(1)), 0)
    assert polling[1].facts[ROOM].failed
    effects, outcomes = poll(polling)
    assert outcomes == [0b00]
    assert TellRouter(Done(ROOM, Reason.TRANSFER_FAILED)) in effects
    assert not any(rank.scheduler.role.pool.counts()["owned"] for rank in polling)


def test_what_was_observed_of_a_room_goes_with_it(polling: list[Rank]):
    polling[1].on(PeerLost("p0", RankId(1)), 0)
    poll(polling)
    settled(polling, polling[0].on(Quiet(ROOM), 0), 0)
    assert [dict(rank.facts) for rank in polling] == [{}, {}]


# log-probabilities and grammars

LOGPROBS = Logprobs(-0.5, ((7, -0.5), (8, -1.5)))
JSON = '{"type":"object"}'


def test_log_probabilities_go_to_the_router_and_to_the_peer_and_into_no_frame():
    (rank,) = ring(1)
    rank.on(PeerOpened(msgspec.structs.replace(hello(0, 1), group="d0")), 0)
    rank.on(submit(max_tokens=2, peer="d0"), 0)
    rank.on(Grant("d0", ROOM, RankId(0), 0, (PageId(0),)), 0)
    (launch,) = only(rank.on(Combined(ROOM, Fact(Progress.WAITING_FOR_INPUT)), 0), Launch)
    rank.on(Started(launch.plan.tick), 0)
    effects = rank.on(Ran(launch.plan.tick, ((ROOM, (7,)),), (LOGPROBS,)), 0)
    assert only(effects, TellRouter) == [TellRouter(Token(ROOM, 0, 7, LOGPROBS))]
    assert only(effects, TellPeer) == [TellPeer("d0", RankId(0), FirstToken(ROOM, 7, LOGPROBS))]
    entries = [msgspec.msgpack.decode(one.entry, type=Entry) for one in rank.recorder.since(Tick(-1))]
    assert all("0.5" not in str(entry) for entry in entries)
    assert any(harvest.tokens for entry in entries for harvest in entry.frame.harvests)


def test_the_peers_log_probabilities_are_told_with_token_0_and_are_in_no_frame():
    (rank,) = ring(1, RoleName.DECODE)
    rank.on(submit(max_tokens=2, peer="p0"), 0)
    effects = rank.on(FirstToken(ROOM, 7, LOGPROBS), 0)
    assert not only(effects, TellRouter), "its KV is not here yet"
    assert str(LOGPROBS) not in str([one.entry for one in rank.recorder.since(Tick(-1))])
    assert len(rank._head.untold) == 1
    rank.on(Cancel(ROOM, Reason.CLIENT_GONE), 0)
    assert len(rank._head.untold) == 0


def test_rank_0_and_the_last_rank_compile_a_grammar():
    work = msgspec.structs.replace(submit(peer="d0", max_tokens=2).work, grammar=JSON)
    ranks = ring(3)
    effects = ranks[0].on(Submit(work, 60_000), 0)
    assert only(effects, Compile) == [Compile(ROOM, JSON)]
    for rank, compiles in ((1, []), (2, [Compile(ROOM, JSON)])):
        told = [effect for baton in sent(effects, Baton) for effect in ranks[rank].on(baton, 0)]
        assert only(told, Compile) == compiles


@pytest.mark.parametrize(("ok", "kind"), [(True, Kind.COMPILED), (False, Kind.BAD_GRAMMAR)])
def test_only_rank_0_concludes_whether_a_grammar_is_compiled(ok: bool, kind: Kind):
    work = msgspec.structs.replace(submit(peer="d0", max_tokens=2).work, grammar=JSON)
    ranks = ring(2)
    for baton in sent(ranks[0].on(Submit(work, 60_000), 0), Baton):
        ranks[1].on(baton, 0)
    assert ranks[1].on(Compiled(ROOM, ok), 0) == []
    (baton,) = sent(ranks[0].on(Compiled(ROOM, ok), 0), Baton)
    assert baton.frame.verdicts == (Verdict(ROOM, kind),)


def test_a_grammar_that_is_compiled_too_late_concerns_nobody():
    work = msgspec.structs.replace(submit(peer="d0", max_tokens=2).work, grammar=JSON)
    (rank,) = ring(1)
    rank.on(Submit(work, 60_000), 0)
    rank.on(Cancel(ROOM, Reason.CLIENT_GONE), 0)
    assert rank.on(Compiled(ROOM, True), 0) == []
