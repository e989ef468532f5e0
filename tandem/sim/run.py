"""One run of a seed: chaos until the heal, then whatever is left must end in time and leave nothing behind."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tandem.core.config import Group, Limits, PolicyName
from tandem.core.ids import RankId
from tandem.core.requests import Reason, Work, too_large
from tandem.engine.fake import FakeEngine, Where
from tandem.engine.memory import PlainMemory
from tandem.engine.model import FAKE_CELL_BYTES
from tandem.ports import Engine
from tandem.sim.case import BAD_GRAMMAR, LAYERS, WHOLE, Case, Request, Variant, draw
from tandem.sim.chaos import unleash
from tandem.sim.client import Answer, Client, WrongAnswer
from tandem.sim.content import Content
from tandem.sim.faults import Fault, Swarm
from tandem.sim.router import PATIENT_MS
from tandem.sim.world import World

WAIT_US = 1_000_000
"""What one request may wait besides computing, after the heal: some polls at their longest back-off, slow writes."""
FENCES = 3
"""For which one request may have to wait until pages come back: one of each group, and one more after late facts."""
RESYNC_US = 4_000_000
"""What the store may need to make up for lost messages: twice a second's silence and two flushes."""


PATIENT_ENOUGH_MS = 100
"""Within which a peer's word has come when nothing goes wrong."""


class Needless(Exception):
    """A peer was cut off that had given no reason."""


class Stalled(Exception):
    """Somebody waits for what will never come, or ended only because the time was up."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run did, for progress and for comparing runs."""

    seed: int
    hash: str
    ticks: int
    requests: int
    aborted: int
    evicted: int
    migrated: int  # times that a request went on after it had lost a group
    formed: int  # times that a group formed anew
    fences: int
    fenced_writes: int  # that could not land any more
    lost_words: int  # that peers had said to each other
    faults: dict[Fault, int]  # how often each kind acted


def simulate(seed: int, variant: Variant = WHOLE, tell: Callable[[str], None] | None = None) -> Result:
    """Run one seed to the end. Raises with the name of what was broken. `tell` is given the run in words."""
    return run_case(draw(seed, variant), tell)


def run_case(case: Case, tell: Callable[[str], None] | None = None, policy: PolicyName = "round_robin") -> Result:
    """See simulate. With another policy than round robin the router chooses, whatever groups a request names."""
    client = Client(content_of)
    swarm = Swarm(case.seed, case.kinds)
    world = World(case.seed, case.cluster, build_engine, client, swarm, policy)
    world.tell = tell
    world.say(case.describe())
    for request in case.requests:
        _load(world, request)
    unleash(world, case.heal_us)
    world.run(until_us=case.heal_us + 1)
    _end(world, case)
    _count_answers(swarm, client)
    aborted = sum(client.answer(request.work.room).ended is Reason.CLIENT_GONE for request in case.requests)
    return Result(
        case.seed,
        world.hash,
        len(world.ticks),
        len(client.answers),
        aborted,
        client.evicted,
        world.router.dispatch.requests.migrated,
        world.epochs.formed,
        world.fences,
        world.fenced_writes,
        world.lost_words,
        dict(swarm.counts),
    )


def content_of(work: Work) -> Content:
    """The oracle of a request."""
    return Content(work, LAYERS)


where_of = functools.lru_cache(maxsize=256)(Where)
"""All ranks of a group run the same rows: where these lie is computed once for all of them."""


def build_engine(group: Group, rank: RankId, limits: Limits) -> Engine:
    """The fake engine of one stage."""
    layers = group.layers(rank)
    memory = PlainMemory(layers, limits.num_pages, limits.page_size * FAKE_CELL_BYTES)
    last = layers[1] == LAYERS
    return FakeEngine(memory, page_size=limits.page_size, last=last, context=limits.context, where=where_of)


def _load(world: World, request: Request) -> None:
    submit = partial(world.router.submit, request.work, request.groups, request.remaining_ms)
    world.clock.at(request.at_us, partial(submit, request.late_us, request.retries))
    world.clock.at(request.at_us, partial(world.swarm.acted, Fault.BURSTS))
    if any(request.late_us.values()):
        world.clock.at(request.at_us, partial(world.swarm.acted, Fault.LATE_SUBMITS))
    if request.again_us is not None:
        world.clock.at(request.again_us, submit)
        world.clock.at(request.again_us, partial(world.swarm.acted, Fault.DOUBLED_SUBMITS))
    if request.leaves_us is not None:
        world.clock.at(request.leaves_us, partial(world.router.cancel, request.work, request.told))
        world.clock.at(request.leaves_us, partial(world.swarm.acted, Fault.ABORTS))


# after the heal


def _end(world: World, case: Case) -> None:
    """Everyone is answered within what is left to do, then everything is at rest."""
    patience_us = _patience_us(world, case)
    world.run(until_us=case.heal_us + patience_us)
    if waiting := world.client.waiting():
        raise Stalled(f"{_names(waiting)} not answered {patience_us // 1000} ms after the heal")
    world.run()
    if world.ticks.busy_until_us > case.heal_us + patience_us:
        raise Stalled(f"the last tick was at {world.ticks.busy_until_us // 1000} ms")
    world.client.check()
    _check_reasons(world, case)
    world.check_at_rest()
    _probe(world, case)
    world.check_at_rest()


def _probe(world: World, case: Case) -> None:
    """Every route still serves; where a client leaves decode, prefill hears of it, and decode of what is quiet."""
    fences, patient = world.fences, _patience_ms(world, case, min) >= PATIENT_ENOUGH_MS
    world.router.made_up_for.clear()
    for probe in case.probes:
        _load(world, probe.after(world.clock.now_us))
    world.run()
    if world.router.made_up_for:
        raise Stalled(f"when all was at rest, {world.router.made_up_for[0]}")
    world.client.check()
    for probe in case.probes:
        ended = world.client.answer(probe.work.room).ended
        if ended not in (Reason.STOP, Reason.LENGTH) and probe.leaves_us is None:
            raise WrongAnswer(f"r{probe.number} came when all was at rest, and ended {ended}")
    if patient and world.fences > fences:
        raise Needless(f"{world.fences - fences} ranks began a fence when all was at rest")


def _patience_us(world: World, case: Case) -> int:
    """Remaining tokens, each in a tick of its own at the slowest pace, 4 L ticks, and what may be waited for.

    Pages of who has been answered may wait for a fence as well.
    """
    pace, slots = world.pace, max(group.size for group in world.groups) + case.cluster.limits.async_depth
    tick_us = LAYERS * pace.layer_us[1] + len(world.nodes) * 2 * pace.message_us[1]
    answered = [room for room, answer in world.client.answers.items() if answer.code is not None]
    left = [request.work for request in case.requests if request.work.room not in answered]
    ticks = sum(len(work.prompt) + work.max_tokens for work in left) + 4 * slots
    fences_us = FENCES * 1000 * _patience_ms(world, case, max)
    return ticks * tick_us + len(left) * (WAIT_US + fences_us) + fences_us + RESYNC_US


def _patience_ms(world: World, case: Case, of: Callable[[Iterable[int]], int]) -> int:
    return of(case.cluster.limits_of(group).quiesce_ms for group in world.groups)


def _check_reasons(world: World, case: Case) -> None:
    """Nobody ends for a reason that is not its own: not by another's abort, not for a fault that was not there."""
    for request in case.requests:
        answer = world.client.answer(request.work.room)
        if answer.code not in _allowed(world, case, request, answer):
            raise WrongAnswer(f"r{request.number} ended with {answer.code}, for which it has no reason")


def _allowed(world: World, case: Case, request: Request, answer: Answer) -> set[str]:
    limits, work, acted = case.cluster.limits, request.work, world.swarm.counts
    fails = (Fault.FAILED_WRITES, Fault.UNSETTLED_WRITES, Fault.PARTINGS, Fault.ONE_WAY)
    gone = any(acted.get(kind) for kind in (Fault.RESTARTS, Fault.CRASHES, Fault.ZOMBIES, Fault.LEAVES))
    known = (
        answer.attempt.room.attempt > 1
        and len(answer.served) <= len(answer.serving)
        and not request.late_us
        and not gone
    )
    drained = bool(acted.get(Fault.DRAINS) or acted.get(Fault.LEAVES)) and not known
    codes = {
        "client_gone": answer.left is not None,
        "deadline_exceeded": request.remaining_ms < PATIENT_MS,
        "queue_full": Fault.FEW_ROOMS in case.kinds,
        "draining": drained,
        "context_length_exceeded": too_large(work, limits, len(work.prompt))
        or too_large(work, limits, work.last_position),
        "group_lost": gone,
        "request_quarantined": gone,
        "no_prefill": gone,
        "no_decode": gone,
        "no_colocated": gone,
        "overloaded": drained or world.client.evicted > 0,
        "invalid_grammar": work.grammar == BAD_GRAMMAR,
        "kv_checksum": bool(acted.get(Fault.CORRUPTED_WRITES)),
        "kv_transfer_failed": gone or world.fences > 0 or any(acted.get(kind) for kind in fails),
    }
    return {"stop", "length", *(code for code, allowed in codes.items() if allowed)}


def _names(answers: list[Answer]) -> str:
    return ", ".join(f"r{answer.work.room.rid}" for answer in answers)


def _count_answers(swarm: Swarm, client: Client) -> None:
    """Faults that show in the answers only."""
    shown = {Reason.DEADLINE: Fault.DEADLINES, Reason.QUEUE_FULL: Fault.FEW_ROOMS}
    for answer in client.answers.values():
        if answer.ended in shown:
            swarm.acted(shown[answer.ended])
