"""Known mistakes, planted one at a time: the simulator must find each. One that it cannot find is a hole in its oracle.

Each plant names what finds it and the first seed to try. The plants use the private parts of the real objects: a plant
that no longer fits fails with an AttributeError, which is never what finds it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest

import tandem.sim.world as world
from consensus.leader import Leader
from consensus.store import Table
from decode.batching import Batches
from decode.receiver import KVReceiver
from decode.role import DecodeRole
from kvtransfer.session import SendSession, SendState
from prefill.role import PrefillRole
from prefill.sender import KVSender
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Effect, Post, TellPeer
from tandem.core.errors import Divergence, IllegalTransition
from tandem.core.events import Combined, Written
from tandem.core.head import Head
from tandem.core.ids import Epoch, RankId
from tandem.core.inputs import FirstToken, Harvest, Kind, Verdict
from tandem.core.messages import Commit, Fact, Progress, Quiet
from tandem.core.pages import PagePool
from tandem.core.plan import Plan, ToldPeer
from tandem.core.rank import Rank
from tandem.core.scheduler import Scheduler
from tandem.core.slots import Flights
from tandem.sim.client import WrongAnswer
from tandem.sim.oracle import StrayAccess
from tandem.sim.run import Stalled, simulate

Patch = pytest.MonkeyPatch
MOST_SEEDS = 100

# memory


def free_on_failed(patch: Patch) -> None:
    """Prefill takes the pages back when a request has ended, not when it is quiet."""
    original = PrefillRole._end

    def end(role: PrefillRole, request, reason, told_by):
        notes = original(role, request, reason, told_by)
        role.pool.release(request.room)
        return notes

    patch.setattr(PrefillRole, "_end", end)


def ignore_quarantine(patch: Patch) -> None:
    """Decode frees the pages of a request that ended while prefill could still write into them."""
    patch.setattr(PagePool, "quarantine", PagePool.release)


def quiet_while_writes_are_posted(patch: Patch) -> None:
    """A sender forgets that posted writes still read its pages."""
    patch.setattr(SendSession, "drained", property(lambda self: is_ending(self) and not self.unfinished))


def quiet_while_a_forward_runs(patch: Patch) -> None:
    """A sender forgets that the engine still writes into the pages."""
    patch.setattr(SendSession, "drained", property(lambda self: is_ending(self) and not self.posted))


def is_ending(session: SendSession) -> bool:
    return session.state is SendState.STOPPED or (session.state is SendState.SENDING and session.whole)


def quiet_when_anyone_is(patch: Patch) -> None:
    """The table combines quiet like failed: any instead of all."""
    original = Table.combined

    def combined(table: Table, room):
        fact = original(table, room)
        quiet = any(column[room].quiet for column in table._columns if room in column)
        return fact and msgspec.structs.replace(fact, quiet=quiet)

    patch.setattr(Table, "combined", combined)


def pages_go_at_the_end_of_a_running_request(patch: Patch) -> None:
    """Decode frees an aborted request's pages while its forward is in flight."""
    original = DecodeRole._end

    def end(role: DecodeRole, request, reason, told_by):
        notes = original(role, request, reason, told_by)
        if request.flying:
            role.pool.release(request.room)
        return notes

    patch.setattr(DecodeRole, "_end", end)


# transfer


def join_before_the_verdict(patch: Patch) -> None:
    """Decode runs a request as soon as its first token is here, whether or not the KV is."""
    original = DecodeRole.on_first_token

    def on_first_token(role: DecodeRole, first: FirstToken):
        role._requests[first.room].landed = True
        return original(role, first)

    patch.setattr(DecodeRole, "on_first_token", on_first_token)


def commit_before_the_write_has_ended(patch: Patch) -> None:
    """The receiver is told of a write when it is posted."""
    post, moved = KVSender._post, KVSender._moved

    def eager(sender: KVSender, chunk, layer):
        effects: list[Effect] = post(sender, chunk, layer)
        told = [sender._writes[each.ticket] for each in effects if isinstance(each, Post)]
        return effects + [TellPeer(write.peer, write.rank, write.commit) for write in told]

    def silent(sender: KVSender, write, result: Written):
        return [each for each in moved(sender, write, result) if not isinstance(each, TellPeer)]

    patch.setattr(KVSender, "_post", eager)
    patch.setattr(KVSender, "_moved", silent)


def post_before_the_layer_ran(patch: Patch) -> None:
    """Pages are sent when their forward is planned, not when it has computed them."""
    original = KVSender.on_plan

    def on_plan(sender: KVSender, plan: Plan):
        effects = original(sender, plan)
        for chunk in sender._chunks.get(plan.tick, ()):
            for layer in range(*sender._layers):
                effects += sender._post(chunk, layer)
        sender._chunks[plan.tick] = [chunk._replace(pages=()) for chunk in sender._chunks.get(plan.tick, ())]
        return effects

    patch.setattr(KVSender, "on_plan", on_plan)


def one_commit_is_enough(patch: Patch) -> None:
    """Coverage of the last layer counts as coverage of all."""
    patch.setattr("kvtransfer.coverage.Coverage.complete", property(lambda self: self._missing <= 1))


def failed_writes_count_as_sent(patch: Patch) -> None:
    """A sender commits whatever has ended, well or not."""
    original = KVSender._moved
    patch.setattr(KVSender, "_moved", lambda sender, write, result: original(sender, write, Written.OK))


def unsettled_writes_count_as_ended(patch: Patch) -> None:
    """A sender takes a failed write for one that cannot land any more."""
    original = KVSender._moved

    def moved(sender: KVSender, write, result: Written):
        return original(sender, write, Written.FAILED_SETTLED if result is Written.FAILED_UNSETTLED else result)

    patch.setattr(KVSender, "_moved", moved)


def a_peer_lost_before_the_grant_is_not_missed(patch: Patch) -> None:
    """Decode says nothing when it has nobody to send its grants to."""
    original = KVReceiver._grant

    def grant(receiver: KVReceiver, note):
        return [each for each in original(receiver, note) if isinstance(each, TellPeer)]

    patch.setattr(KVReceiver, "_grant", grant)


# verdicts


def outcome_decided_locally(patch: Patch) -> None:
    """A decode rank lets a request join when its own layers have landed."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        if isinstance(event, Commit) and rank.courier._sessions.get(event.room):
            session = rank.courier._sessions[event.room]
            if session.coverage and session.coverage.complete:
                rank.scheduler.role.on_verdict(Verdict(event.room, Kind.TRANSFERRED))
        return effects

    patch.setattr(Rank, "on", on)


def released_locally(patch: Patch) -> None:
    """Each prefill rank takes pages back when its own session is quiet."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        for session in getattr(rank.courier, "_sessions", {}).values():
            if getattr(session, "state", None) is SendState.QUIET and rank.scheduler.role.pool.held(session.room):
                rank.scheduler.role.pool.release(session.room)
        return effects

    patch.setattr(Rank, "on", on)


def admitted_when_one_rank_is_ready(patch: Patch) -> None:
    """Bootstrapping is over as soon as any rank says so."""
    original = Table.combined

    def combined(table: Table, room):
        fact = original(table, room)
        most = max((column[room].progress for column in table._columns if room in column), default=None)
        return fact if fact is None or most is None else msgspec.structs.replace(fact, progress=most)

    patch.setattr(Table, "combined", combined)


def a_no_is_not_heard(patch: Patch) -> None:
    """The ballot is passed on as it came: only the first rank's answer would count, and here not even that."""
    patch.setattr("tandem.core.rank.fold", lambda ballot, answers: ballot)


def quiet_is_concluded_from_progress(patch: Patch) -> None:
    """Rank 0 takes a room for quiet as soon as its ranks are bootstrapped."""
    original = Head.gather

    def gather(head: Head, event):
        if isinstance(event, Combined) and event.fact and event.fact.progress >= Progress.WAITING_FOR_INPUT:
            event = Combined(event.room, Fact(event.fact.progress, event.fact.failed, quiet=True))
        original(head, event)

    patch.setattr(Head, "gather", gather)


def failure_is_not_told_to_the_peer(patch: Patch) -> None:
    """Each group ends its own half and leaves the other waiting."""
    original = Scheduler.step

    def step(scheduler: Scheduler, frame):
        plan = original(scheduler, frame)
        return msgspec.structs.replace(plan, notes=tuple(n for n in plan.notes if not isinstance(n, ToldPeer)))

    patch.setattr(Scheduler, "step", step)


def quiet_is_not_told_to_the_peer(patch: Patch) -> None:
    """Decode never hears that its quarantined pages are safe."""
    original = Head.gather

    def gather(head: Head, event):
        if not isinstance(event, Quiet):
            original(head, event)

    patch.setattr(Head, "gather", gather)


# replication


def harvests_newest_first(patch: Patch) -> None:
    """Rank 0 applies the returns that came since its last frame in the wrong order."""
    patch.setattr(Leader, "harvest", lambda leader, harvest: leader._harvests.insert(0, harvest))


def positions_by_list_order(patch: Patch) -> None:
    """Sampled tokens are matched with the requests in the order of their arrival, not with the rows they belong to."""

    def on_harvest(scheduler: Scheduler, harvest: Harvest):
        rows = scheduler.flights.land(harvest.tick)
        order = list(scheduler.role._requests)
        sampled = sorted((row for row in rows if row.samples and row.room in order), key=lambda r: order.index(r.room))
        tokens = {row.room: drawn for row, (_, drawn) in zip(sampled, harvest.tokens, strict=False)}
        return [note for row in rows for note in scheduler.role.on_tokens(row, tokens.get(row.room, ()))]

    patch.setattr(Scheduler, "_on_harvest", on_harvest)


def each_rank_its_own_clock(patch: Patch) -> None:
    """Deadlines are compared with a clock that is off by some milliseconds on every rank."""
    on_ranks(patch, lambda rank, role: late(role, 20 * rank))


def late(role: DecodeRole | PrefillRole, skew_ms: int) -> None:
    expire = role.expire
    role.expire = lambda now_ms: expire(now_ms + skew_ms)  # type: ignore[method-assign]


def each_rank_its_own_order(patch: Patch) -> None:
    """Odd ranks look at their queue backwards, as an iteration over a set might."""
    on_ranks(patch, lambda rank, role: backwards(role) if rank % 2 else None)


def backwards(role: DecodeRole | PrefillRole) -> None:
    admit, queue = role.admit, "_queue" if isinstance(role, DecodeRole) else "_waiting"

    def reversed_admit(now_ms: int):
        setattr(role, queue, dict(reversed(getattr(role, queue).items())))
        asks = admit(now_ms)
        setattr(role, queue, dict(reversed(getattr(role, queue).items())))
        return asks

    role.admit = reversed_admit  # type: ignore[method-assign]


def on_ranks(patch: Patch, change: Callable[[int, DecodeRole | PrefillRole], None]) -> None:
    original = world.build_rank

    def build(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
        built = original(group, rank, epoch, limits)
        change(rank, built.scheduler.role)  # type: ignore[arg-type]
        return built

    patch.setattr(world, "build_rank", build)


def each_rank_its_own_capacity(patch: Patch) -> None:
    """The page count is not agreed: the last rank of a decode group has fewer."""
    original = world.build_rank

    def build(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
        if group.role is RoleName.DECODE and rank == group.size - 1 > 0:
            limits = msgspec.structs.replace(limits, num_pages=max(1, limits.num_pages - 3))
        return original(group, rank, epoch, limits)

    patch.setattr(world, "build_rank", build)


# scheduling


def a_busy_slot_may_be_named(patch: Patch) -> None:
    """A slot runs again before its last result is in."""
    patch.setattr(Flights, "busy", lambda flights, returned=frozenset(): set())


def admit_whatever_fits_now(patch: Patch) -> None:
    """Decode takes a request whose prompt fits, although all of them could then need pages to go on."""
    patch.setattr("decode.role.can_admit", lambda free, claims, newcomer: newcomer.held <= free)


def growth_is_not_watched(patch: Patch) -> None:
    """A running request takes any free page, although others may then be unable to finish."""
    patch.setattr("decode.batching.tightest_before", lambda spare: [None] * len(spare))


def a_blocked_request_is_forgotten(patch: Patch) -> None:
    """A request that waits for a page never asks again."""
    patch.setattr(Batches, "_runnable", lambda batches, request: request.blocked_at < 0 and request.slot >= 0)


def ended_rooms_are_remembered_too_late(patch: Patch) -> None:
    """Two arrivals about one room in one frame: the second does not see what the first has done."""
    step, remember = Scheduler.step, Scheduler._remember

    def step_then_remember(scheduler: Scheduler, frame):
        plan = step(scheduler, frame)
        remember(scheduler, list(plan.notes))
        return plan

    patch.setattr(Scheduler, "_remember", lambda scheduler, notes: None)
    patch.setattr(Scheduler, "step", step_then_remember)


@dataclass(frozen=True)
class Plant:
    """A mistake, what finds it, and a seed to begin with."""

    mistake: Callable[[Patch], None]
    found_as: type[Exception] | tuple[type[Exception], ...]
    seed: int = 0


PLANTS = (
    Plant(free_on_failed, StrayAccess),
    Plant(ignore_quarantine, StrayAccess),
    Plant(quiet_while_writes_are_posted, StrayAccess),
    Plant(quiet_while_a_forward_runs, (StrayAccess, Stalled)),
    Plant(quiet_when_anyone_is, StrayAccess),
    Plant(pages_go_at_the_end_of_a_running_request, StrayAccess),
    Plant(join_before_the_verdict, WrongAnswer),
    Plant(commit_before_the_write_has_ended, WrongAnswer),
    Plant(post_before_the_layer_ran, WrongAnswer),
    Plant(one_commit_is_enough, (WrongAnswer, StrayAccess)),
    Plant(failed_writes_count_as_sent, (WrongAnswer, StrayAccess)),
    Plant(unsettled_writes_count_as_ended, (StrayAccess, Divergence)),
    Plant(a_peer_lost_before_the_grant_is_not_missed, Stalled),
    Plant(outcome_decided_locally, Divergence),
    Plant(released_locally, (Divergence, StrayAccess)),
    Plant(admitted_when_one_rank_is_ready, (StrayAccess, IllegalTransition)),
    Plant(a_no_is_not_heard, KeyError),
    Plant(quiet_is_concluded_from_progress, (StrayAccess, IllegalTransition)),
    Plant(failure_is_not_told_to_the_peer, Stalled),
    Plant(quiet_is_not_told_to_the_peer, Divergence),
    Plant(harvests_newest_first, IllegalTransition),
    Plant(positions_by_list_order, WrongAnswer),
    Plant(each_rank_its_own_clock, Divergence),
    Plant(each_rank_its_own_order, Divergence),
    Plant(each_rank_its_own_capacity, Divergence),
    Plant(a_busy_slot_may_be_named, (AssertionError, Divergence, WrongAnswer)),  # or the engine's check of its rows
    Plant(admit_whatever_fits_now, Stalled),
    Plant(growth_is_not_watched, Stalled),
    Plant(a_blocked_request_is_forgotten, Stalled),
    Plant(ended_rooms_are_remembered_too_late, (WrongAnswer, Stalled), seed=160),
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.mistake.__name__)
def test_the_simulator_finds(plant: Plant, monkeypatch: Patch):
    plant.mistake(monkeypatch)
    found = next(failures(plant.seed), None)
    assert found is not None, f"{plant.mistake.__name__} survives {MOST_SEEDS} seeds: the simulator has a hole"
    seed, error = found
    assert isinstance(error, plant.found_as), f"seed {seed} fails otherwise"


def failures(first: int) -> Iterator[tuple[int, Exception]]:
    for seed in range(first, first + MOST_SEEDS):
        try:
            simulate(seed)
        except Exception as error:  # noqa: BLE001  whatever it is, it was found
            yield seed, error
