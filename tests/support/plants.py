"""Known mistakes, planted one at a time: the simulator must find each. One that it cannot find is a hole in its oracle.

A plant is a function that breaks the production code by a patch; its docstring says what somebody got wrong. Each has a
recorded seed, which fails as recorded with the plant and passes without it. `tests/sim/find_seeds.py` finds seeds anew
after a change of what seeds stand for. Plants use the private parts of the real objects: one that no longer fits fails
with an AttributeError, which is never what finds it.
"""

from collections.abc import Callable
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
from tandem.core.effects import Effect, Observe, Post, TellPeer
from tandem.core.errors import Divergence, IllegalTransition
from tandem.core.events import Combined, Written
from tandem.core.head import Head
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.inputs import Abort, FirstToken, Harvest, Kind, Verdict
from tandem.core.messages import Commit, Fact, Progress, Quiet
from tandem.core.pages import PagePool
from tandem.core.plan import Plan, ToldPeer
from tandem.core.rank import Rank
from tandem.core.recent import Recent
from tandem.core.scheduler import Scheduler
from tandem.core.slots import Flights
from tandem.sim.client import WrongAnswer
from tandem.sim.ledger import WrongContent
from tandem.sim.oracle import StrayAccess
from tandem.sim.run import Stalled
from tandem.sim.ticks import Flooded

Patch = pytest.MonkeyPatch

# memory


def free_on_failed(patch: Patch) -> None:
    """Prefill takes the pages back when a request has ended or failed, not when it is quiet."""
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
        if isinstance(event, Commit) and sessions(rank).get(event.room):
            session = sessions(rank)[event.room]
            if session.coverage and session.coverage.complete:
                rank.scheduler.role.on_verdict(Verdict(event.room, Kind.TRANSFERRED))
        return effects

    patch.setattr(Rank, "on", on)


def sessions(rank: Rank):
    """What its courier keeps, be it a reluctant one or not."""
    return getattr(rank.courier, "_courier", rank.courier)._sessions


def released_locally(patch: Patch) -> None:
    """Each prefill rank takes pages back when its own session is quiet."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        for session in sessions(rank).values():
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


def asked_again_after_the_verdict(patch: Patch) -> None:
    """A rank that is told that all is well looks at its own facts once more, and acts on what it sees now."""

    def change(rank: Rank) -> None:
        on_verdict = rank.scheduler.role.on_verdict

        def look_again(verdict: Verdict):
            fact = rank._facts.get(verdict.room)
            failed = verdict.kind in (Kind.BOOTSTRAPPED, Kind.TRANSFERRED) and fact is not None and fact.failed
            return on_verdict(Verdict(verdict.room, Kind.FAILED) if failed else verdict)

        rank.scheduler.role.on_verdict = look_again  # type: ignore[method-assign]

    on_ranks(patch, change)


def failure_is_handled_where_it_is_seen(patch: Patch) -> None:
    """Rank 0 ends a request as soon as its own transfer has failed; the others never hear of it in a frame."""
    original = Rank._observe

    def observe(rank: Rank, effects):
        original(rank, effects)
        for effect in effects:
            if isinstance(effect, Observe) and effect.fact.failed and rank.place.first:
                role = rank.scheduler.role
                if role.knows(effect.room):
                    role.on_verdict(Verdict(effect.room, Kind.FAILED))

    patch.setattr(Rank, "_observe", observe)


def metadata_is_looked_at_when_the_verdict_is_applied(patch: Patch) -> None:
    """The first token reaches each rank over a link of its own, on some a tick later; nobody has voted on it."""

    def change(rank: Rank) -> None:
        role, late = rank.scheduler.role, []
        if rank.place.first or not isinstance(role, DecodeRole):
            return
        take, decide = role.on_first_token, role.decide

        def keep(first: FirstToken):
            late.append(first)
            return []

        def decide_and_then_see(slot, now_ms: int):
            decision = decide(slot, now_ms)
            for first in late:
                if role.knows(first.room):
                    take(first)
            late.clear()
            return decision

        role.on_first_token, role.decide = keep, decide_and_then_see  # type: ignore[method-assign]

    on_ranks(patch, change)


# rooms


def attempts_are_not_told_apart(patch: Patch) -> None:
    """What has ended is remembered by request: the next attempt is taken for something late."""
    patch.setattr(Recent, "__contains__", lambda recent, room: room.rid in [known.rid for known in recent._rooms])


def facts_are_kept_by_request(patch: Patch) -> None:
    """The store's table has one entry for all attempts: what the last one left says something about this one."""
    apply, combined = Table._apply, Table.combined

    def same_room(message):
        entries = tuple((Room(room.rid, 1), fact) for room, fact in message.entries if fact is not None)
        return msgspec.structs.replace(message, entries=entries, snapshot=False)

    def apply_to_request(table: Table, message):
        rooms = [room for room, _ in message.entries]
        list(apply(table, same_room(message)))
        return rooms

    patch.setattr(Table, "_apply", apply_to_request)
    patch.setattr(Table, "combined", lambda table, room: combined(table, Room(room.rid, 1)))


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
    """Deadlines are compared with the clock of the rank that looks at them."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        role = rank.scheduler.role
        role.expire = lambda frame_ms: type(role).expire(role, frame_ms if rank.place.first else now_ms)
        return original(rank, event, now_ms)

    patch.setattr(Rank, "on", on)


def each_rank_its_own_order(patch: Patch) -> None:
    """Odd ranks look at their queue backwards, as an iteration over a set might."""
    on_ranks(patch, lambda rank: backwards(rank.scheduler.role) if rank.place.rank % 2 else None)


def backwards(role) -> None:
    decide, queue = role.decide, "_queue" if isinstance(role, DecodeRole) else "_waiting"

    def turned() -> None:
        setattr(role, queue, dict(reversed(getattr(role, queue).items())))

    def decide_backwards(slot, now_ms: int):
        turned()
        decision = decide(slot, now_ms)
        turned()
        return decision

    role.decide = decide_backwards


def on_ranks(patch: Patch, change: Callable[[Rank], None]) -> None:
    """Change every rank as it is built."""
    original = world.build_rank

    def build(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
        built = original(group, rank, epoch, limits)
        change(built)
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


# rank 0


def a_verdict_is_given_again(patch: Patch) -> None:
    """Rank 0 does not remember what it has concluded."""

    def conclude(leader: Leader, verdict: Verdict) -> None:
        if verdict.kind in leader._kinds:
            leader._verdicts.append(verdict)

    patch.setattr(Leader, "conclude", conclude)


def the_wake_time_stays_in_the_past(patch: Patch) -> None:
    """After a tick that time alone has opened, the next one is due at once."""
    original = Scheduler._wake_ms

    def wake_ms(scheduler: Scheduler):
        wake = original(scheduler)
        return None if wake is None else 0

    patch.setattr(Scheduler, "_wake_ms", wake_ms)


def an_abort_ends_every_room_that_begins_alike(patch: Patch) -> None:
    """Rooms are looked up by the beginning of their name: r1 takes r10 with it."""
    original = Scheduler._on_arrival

    def on_arrival(scheduler: Scheduler, arrival, now_ms: int):
        notes = original(scheduler, arrival, now_ms)
        if isinstance(arrival, Abort):
            alike = [room for room in scheduler.role._requests if str(room.rid).startswith(str(arrival.room.rid))]
            notes += [n for room in alike for n in scheduler.role.on_abort(Abort(room, arrival.reason, arrival.peer))]
        return notes

    patch.setattr(Scheduler, "_on_arrival", on_arrival)


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
    """A mistake, what finds it (the exception and a phrase of what it says), and the recorded seed."""

    mistake: Callable[[Patch], None]
    found_as: type[Exception]
    saying: str
    seed: int

    @property
    def name(self) -> str:
        """Of the switch."""
        return self.mistake.__name__

    def finds(self, error: Exception) -> bool:
        """Whether this is how the mistake shows."""
        return isinstance(error, self.found_as) and self.saying in str(error)


PLANTS = (
    Plant(free_on_failed, StrayAccess, "given them away", 1),
    Plant(ignore_quarantine, StrayAccess, "written", 1),
    Plant(quiet_while_writes_are_posted, StrayAccess, "read by a write", 0),
    Plant(quiet_while_a_forward_runs, StrayAccess, "used by tick", 4),
    Plant(quiet_when_anyone_is, StrayAccess, "given them away", 0),
    Plant(pages_go_at_the_end_of_a_running_request, StrayAccess, "used by tick", 1),
    Plant(join_before_the_verdict, WrongContent, "first row", 0),
    Plant(commit_before_the_write_has_ended, WrongContent, "first row", 0),
    Plant(post_before_the_layer_ran, WrongContent, "first row", 0),
    Plant(one_commit_is_enough, WrongContent, "first row", 6),
    Plant(failed_writes_count_as_sent, WrongContent, "first row", 4),
    Plant(unsettled_writes_count_as_ended, StrayAccess, "given them away", 4),
    Plant(a_peer_lost_before_the_grant_is_not_missed, Stalled, "not answered", 358),
    Plant(outcome_decided_locally, Divergence, "digest", 0),
    Plant(asked_again_after_the_verdict, Divergence, "digest", 51),
    Plant(failure_is_handled_where_it_is_seen, Divergence, "digest", 9),
    Plant(metadata_is_looked_at_when_the_verdict_is_applied, Divergence, "digest", 18),
    Plant(released_locally, Divergence, "digest", 4),
    Plant(admitted_when_one_rank_is_ready, IllegalTransition, "cannot take launched", 0),
    Plant(a_no_is_not_heard, KeyError, "", 0),
    Plant(quiet_is_concluded_from_progress, IllegalTransition, "", 0),
    Plant(failure_is_not_told_to_the_peer, Stalled, "not answered", 20),
    Plant(quiet_is_not_told_to_the_peer, Divergence, "not at rest", 1),
    Plant(attempts_are_not_told_apart, Stalled, "not answered", 9),
    Plant(facts_are_kept_by_request, StrayAccess, "", 123),
    Plant(a_verdict_is_given_again, Divergence, "a second time", 0),
    Plant(the_wake_time_stays_in_the_past, Flooded, "spins", 0),
    Plant(an_abort_ends_every_room_that_begins_alike, WrongAnswer, "has no reason", 1),
    Plant(harvests_newest_first, IllegalTransition, "the oldest in flight", 1),
    Plant(positions_by_list_order, WrongAnswer, "the reference has", 1),
    Plant(each_rank_its_own_clock, Divergence, "digest", 1),
    Plant(each_rank_its_own_order, Divergence, "digest", 0),
    Plant(each_rank_its_own_capacity, Divergence, "digest", 0),
    Plant(a_busy_slot_may_be_named, StrayAccess, "used by tick", 0),
    Plant(admit_whatever_fits_now, Stalled, "not answered", 25),
    Plant(growth_is_not_watched, Stalled, "not answered", 89),
    Plant(a_blocked_request_is_forgotten, Stalled, "not answered", 25),
    Plant(ended_rooms_are_remembered_too_late, WrongAnswer, "after its last word", 68),
)
"""The switchboard."""
