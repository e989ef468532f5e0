"""Decisions that each rank makes in its own way."""

import msgspec
from mistakes.ranks import Patch, on_ranks

import tandem.sim.world as world
from consensus.leader import Leader
from prefill.role import PrefillRole
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId
from tandem.core.inputs import Harvest, Verdict
from tandem.core.rank import Rank
from tandem.core.requests import PRIORITY_MS
from tandem.core.scheduler import Scheduler


def positional_lists(patch: Patch) -> None:
    """Sampled tokens are matched with the requests in the order of their arrival, not with the rows they belong to."""

    def on_harvest(scheduler: Scheduler, harvest: Harvest):
        rows = scheduler.flights.land(harvest.tick)
        order = list(scheduler.role._requests)
        sampled = sorted((row for row in rows if row.samples and row.room in order), key=lambda r: order.index(r.room))
        tokens = {row.room: drawn for row, (_, drawn) in zip(sampled, harvest.tokens, strict=False)}
        return [note for row in rows for note in scheduler.role.on_tokens(row, tokens.get(row.room, ()))]

    patch.setattr(Scheduler, "_on_harvest", on_harvest)


def set_iteration_order(patch: Patch) -> None:
    """Odd ranks put the rows of a tick in another order, as an iteration over a set might."""

    def change(rank: Rank) -> None:
        role = rank.scheduler.role
        decide = role.decide

        def decide_backwards(slot, now_ms: int):
            decision = decide(slot, now_ms)
            return decision._replace(rows=decision.rows[::-1])

        if rank.place.rank % 2:
            role.decide = decide_backwards  # type: ignore[method-assign]

    on_ranks(patch, change)


def own_clock(patch: Patch) -> None:
    """Deadlines are compared with the clock of the rank that looks at them."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        role = rank.scheduler.role
        role.expire = lambda frame_ms: type(role).expire(role, frame_ms if rank.place.first else now_ms)
        return original(rank, event, now_ms)

    patch.setattr(Rank, "on", on)


def own_clock_for_priority(patch: Patch) -> None:
    """Who has waited ten seconds by a rank's own clock goes first there, whatever its priority."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        role = rank.scheduler.role

        def decide(slot, frame_ms: int):
            age(waiting(role), now_ms)
            return type(role).decide(role, slot, frame_ms)

        role.decide = decide
        return original(rank, event, now_ms)

    patch.setattr(Rank, "on", on)


def waiting(role) -> list:
    queue = role._waiting if isinstance(role, PrefillRole) else role._held.queue
    return getattr(queue, "_ready", queue)._waiting


def age(requests: list, own_ms: int) -> None:
    for request in requests:
        arrival_ms = request.place.due_ms + request.work.priority * PRIORITY_MS
        if own_ms - arrival_ms >= PRIORITY_MS:
            request.place = request.place._replace(due_ms=arrival_ms)
    requests.sort(key=lambda request: request.place)


def each_rank_its_own_capacity(patch: Patch) -> None:
    """The page count is not agreed: the last rank of a decode group has fewer."""
    original = world.build_rank

    def build(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
        if group.role is RoleName.DECODE and rank == group.size - 1 > 0:
            limits = msgspec.structs.replace(limits, num_pages=max(1, limits.num_pages - 3))
        return original(group, rank, epoch, limits)

    patch.setattr(world, "build_rank", build)


# what rank 0 says to all of them


def harvests_newest_first(patch: Patch) -> None:
    """Rank 0 applies the returns that came since its last frame in the wrong order."""
    patch.setattr(Leader, "harvest", lambda leader, harvest: leader._harvests.insert(0, harvest))


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
