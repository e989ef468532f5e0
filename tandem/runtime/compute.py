"""The engine's own thread: the tick loop hands it plans and never waits for a forward."""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from consensus.pulse import Pulse
from tandem.core.effects import BackUp, Restore
from tandem.core.events import BackedUp, LayerRan, Ran, Started
from tandem.core.ids import LayerId, Tick
from tandem.core.plan import Plan
from tandem.ports import Engine, HostCopies, Sampled


class ComputeThread:
    """Runs plans, and copies to and from host memory, in the order in which they were asked for.

    `tell` is called on this thread with each event, `fail` with the exception of the engine or of a copy.
    `layers` asks for a producer event per layer: only a rank that sends KV needs to be woken that often. The pulse is
    told of every layer.

    The hidden states of a finished tick wait in `take_output` until the tick loop sends them.
    """

    def __init__(
        self,
        engine: Engine,
        host: HostCopies,
        tell: Callable[[Started | LayerRan | Ran | BackedUp], None],
        fail: Callable[[BaseException], None],
        pulse: Pulse,
        *,
        layers: bool,
    ) -> None:
        self._engine = engine
        self._host = host
        self._tell = tell
        self._fail = fail
        self._pulse = pulse
        self._layers = layers
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outputs: dict[Tick, bytes] = {}
        self._closed = False
        self.ran = 0  # forwards that have ended well
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    def submit(self, plan: Plan, hidden: memoryview | None) -> None:
        """Queue a plan with the hidden states of the stage before; they must stay valid until its Ran."""
        self._jobs.put(partial(self._run, plan, hidden))

    def back_up(self, effect: BackUp) -> None:
        """Queue a copy to host memory; BackedUp says that it is done."""
        self._jobs.put(partial(self._back_up, effect))

    def restore(self, effect: Restore) -> None:
        """Queue a copy from host memory: plans that are submitted later find it done."""
        self._jobs.put(partial(self._host.load, effect.host_pages, effect.pages))

    def take_output(self, tick: Tick) -> bytes:
        """This stage's hidden states of a tick that has Ran."""
        return self._outputs.pop(tick)

    def close(self, timeout_s: float) -> None:
        """Stop after what is being done; what waits is left."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._closed:
                job()
        except BaseException as error:  # noqa: BLE001  whatever it was, the tick loop must hear of it
            self._fail(error)

    def _run(self, plan: Plan, hidden: memoryview | None) -> None:
        self._tell(Started(plan.tick))
        result = self._engine.run(plan, hidden, partial(self._layer_ran, plan.tick))
        if isinstance(result, Sampled):
            sampled = [row.room for row in plan.rows if row.samples]
            self._tell(Ran(plan.tick, tuple(zip(sampled, result.tokens, strict=True)), result.logprobs))
        else:
            self._outputs[plan.tick] = bytes(result)
            self._tell(Ran(plan.tick, ()))
        self.ran += 1

    def _back_up(self, effect: BackUp) -> None:
        self._host.save(effect.pages, effect.host_pages)
        self._tell(BackedUp(effect.room))

    def _layer_ran(self, tick: Tick, layer: LayerId) -> None:
        self._pulse.layer_ran(time.monotonic())
        if self._layers:
            self._tell(LayerRan(tick, layer))
