"""The engine's own thread: the tick loop hands it plans and never waits for a forward."""

import queue
import threading
from collections.abc import Callable
from functools import partial

from tandem.core.events import LayerRan, Ran, Started
from tandem.core.ids import LayerId, Tick
from tandem.core.plan import Plan
from tandem.ports import Engine


class ComputeThread:
    """Runs plans in order. `tell` is called on this thread with each event, `fail` with the engine's exception.

    `layers` asks for a producer event per layer: only a rank that sends KV needs to be woken that often.

    The hidden states of a finished tick wait in `take_output` until the tick loop sends them.
    """

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[Started | LayerRan | Ran], None],
        fail: Callable[[BaseException], None],
        *,
        layers: bool,
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._fail = fail
        self._layers = layers
        self._plans: queue.SimpleQueue[tuple[Plan, memoryview | None] | None] = queue.SimpleQueue()
        self._outputs: dict[Tick, bytes] = {}
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    def submit(self, plan: Plan, hidden: memoryview | None) -> None:
        """Queue a plan with the hidden states of the stage before; they must stay valid until its Ran."""
        self._plans.put((plan, hidden))

    def take_output(self, tick: Tick) -> bytes:
        """This stage's hidden states of a tick that has Ran."""
        return self._outputs.pop(tick)

    def close(self, timeout_s: float) -> None:
        """Stop after the plan that runs now."""
        self._plans.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        try:
            while (item := self._plans.get()) is not None:
                self._run(*item)
        except BaseException as error:  # noqa: BLE001  whatever it was, the tick loop must hear of it
            self._fail(error)

    def _run(self, plan: Plan, hidden: memoryview | None) -> None:
        self._tell(Started(plan.tick))
        result = self._engine.run(plan, hidden, partial(self._layer_ran, plan.tick))
        if isinstance(result, memoryview):
            self._outputs[plan.tick] = bytes(result)
            self._tell(Ran(plan.tick, ()))
        else:
            sampled = [row.room for row in plan.rows if row.samples]
            self._tell(Ran(plan.tick, tuple(zip(sampled, result, strict=True))))

    def _layer_ran(self, tick: Tick, layer: LayerId) -> None:
        if self._layers:
            self._tell(LayerRan(tick, layer))
