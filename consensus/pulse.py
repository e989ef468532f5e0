"""How far one rank has come and what it waits for: kept by its tick loop and its engine, told with its heartbeats."""

from tandem.core.ids import Tick

LOOP = "its tick loop"
LOOP_S = 3.0
"""The tick loop makes a round every second: one that has made none for so long hangs."""
NAP_S = 1.0
"""Reports are asked for twice a second: when none was for so long, this process slept, or all of its machine did."""
SMOOTHING = 8
"""What is usual moves by one part in so many with each wait."""


class Pulse:
    """Written by the tick loop (`move`) and by the engine's thread (`layer_ran`), read by the store link's (`report`).

    Times are monotonic seconds, kept without those that were slept away: who slept is not stuck.
    """

    def __init__(self, now_s: float) -> None:
        self.usual_s = 0.0
        """How long a wait usually takes: on rank 0 under load, one tick."""
        self._tick = Tick(-1)
        self._awaiting = ""
        self._since_s = self._layer_s = self._round_s = self._reported_s = now_s
        self._slept_s = 0.0

    def move(self, tick: Tick, awaiting: str, now_s: float) -> None:
        """A round of the tick loop: the last tick that was stepped, and what cannot be done without; empty: nothing."""
        awake_s = now_s - self._slept_s
        if awaiting != self._awaiting:
            if self._awaiting:
                self.usual_s += (awake_s - self._since_s - self.usual_s) / SMOOTHING
            self._awaiting, self._since_s = awaiting, awake_s
        self._tick, self._round_s = tick, awake_s

    def layer_ran(self, now_s: float) -> None:
        """The engine computes: slow is not hung."""
        self._layer_s = now_s - self._slept_s

    def report(self, now_s: float) -> tuple[Tick, str, int]:
        """The tick, what is awaited, and for how many milliseconds nothing has changed about it."""
        nap_s, self._reported_s = now_s - self._reported_s, now_s
        self._slept_s += nap_s if nap_s > NAP_S else 0.0
        awake_s = now_s - self._slept_s
        if awake_s - self._round_s > LOOP_S:
            return self._tick, LOOP, _ms(awake_s - self._round_s)
        return self._tick, self._awaiting, _ms(awake_s - max(self._since_s, self._layer_s))


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))
