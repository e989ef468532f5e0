"""One rank's compute queue in virtual time: forwards and copies to and from host memory, one after the other."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tandem.core.effects import BackUp, Restore
from tandem.core.events import BackedUp, LayerRan, Ran, Started
from tandem.core.ids import LayerId, PageId, Room, Tick
from tandem.core.plan import Plan
from tandem.ports import Engine, Sampled
from tandem.sim.clock import between
from tandem.sim.oracle import check_copy, check_forward, check_forward_writes

if TYPE_CHECKING:
    from tandem.sim.node import Node

Job = Plan | BackUp | Restore


class IllegalCopy(Exception):
    """Host memory was given away while a room still had its copy there."""


class Compute:
    """Runs each job at once and tells of it over the time it would have taken."""

    def __init__(self, node: "Node", engine: Engine) -> None:
        self._node = node
        self._engine = engine
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._hidden_in: dict[Tick, bytes] = {}
        self._hidden_out: dict[Tick, bytes] = {}
        self._host: dict[int, tuple[Room, list[bytes]]] = {}  # by host page: whose it is, and all its layers
        region = engine.memory.region
        self._layers = [LayerId(layer) for layer in range(region.first_layer, region.last_layer)]

    @property
    def waiting(self) -> int:
        """Forwards that have not begun."""
        return sum(isinstance(job, Plan) for job in self._jobs)

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._busy and not self._jobs

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)
        self._next()

    def take_hidden(self, tick: Tick, payload: bytes) -> None:
        """Hidden states have come in for a tick."""
        self._hidden_in[tick] = payload

    def hidden_out(self, tick: Tick) -> bytes:
        """The hidden states that a tick has left, once."""
        return self._hidden_out.pop(tick)

    def _next(self) -> None:
        if not self._busy and self._jobs:
            self._busy = True
            job = self._jobs.popleft()
            run = partial(self._run, job) if isinstance(job, Plan) else partial(self._copy, job)
            self._node.world.clock.after(0, run)

    def _end(self) -> None:
        self._busy = False
        self._next()

    # forwards

    def _run(self, plan: Plan) -> None:
        if self._node.dead:
            return
        node, clock = self._node, self._node.world.clock
        self._checked(partial(check_forward, plan))
        self._checked(partial(check_forward_writes, plan))
        node.on(Started(plan.tick))
        node.ledger.begin(plan)
        ran: list[LayerId] = []
        hidden = self._hidden_in.pop(plan.tick, None)
        result = self._engine.run(plan, memoryview(hidden) if hidden is not None else None, ran.append)
        node.ledger.finish(plan, result)
        done_us = clock.now_us
        for layer in ran:
            done_us += between(node.rng, node.world.pace.layer_us)
            clock.at(done_us, partial(node.on, LayerRan(plan.tick, layer)))
        ended = Ran(plan.tick, ())
        if isinstance(result, Sampled):
            sampled = [row.room for row in plan.rows if row.samples]
            ended = Ran(plan.tick, tuple(zip(sampled, result.tokens, strict=True)), result.logprobs)
        else:
            self._hidden_out[plan.tick] = bytes(result)
        clock.at(done_us, lambda: self._ran(plan, ended))

    def _ran(self, plan: Plan, ended: Ran) -> None:
        if self._node.dead:
            return
        if not self._node.alone:  # else only forwards touch pages, in their order
            self._checked(partial(check_forward, plan))
        self._busy = False
        self._node.on(ended)
        self._next()

    def _checked(self, check: Callable[..., None]) -> None:
        """On this rank, and on rank 0, which is the first to give pages to others."""
        node = self._node
        check(node.rank)
        if not node.rank.place.first:
            check(node.leader.rank)

    # copies

    def _copy(self, job: BackUp | Restore) -> None:
        node = self._node
        if node.dead:
            return
        self._checked(partial(check_copy, job))
        pairs = list(zip(job.pages, job.host_pages, strict=True))
        for page, host_page in pairs:
            if isinstance(job, BackUp):
                self._host[host_page] = (job.room, [bytes(self._block(layer, page)) for layer in self._layers])
            else:
                self._restore(job.room, page, host_page)
        node.ledger.copied(job)
        took_us = sum(between(node.rng, node.world.pace.page_us) for _ in pairs)
        node.world.clock.after(took_us, lambda: self._copied(job))

    def _block(self, layer: LayerId, page: PageId) -> memoryview:
        return self._engine.memory.block(layer, page)

    def _restore(self, room: Room, page: PageId, host_page: int) -> None:
        owner, layers = self._host[host_page]
        if owner != room:
            raise IllegalCopy(f"host page {host_page} is read for {room}, but holds pages of {owner}")
        for layer, block in zip(self._layers, layers, strict=True):
            self._block(layer, page)[:] = block

    def _copied(self, job: BackUp | Restore) -> None:
        if self._node.dead:
            return
        self._checked(partial(check_copy, job))
        if isinstance(job, BackUp):
            self._node.on(BackedUp(job.room))
        self._end()
