"""Hidden states that have come in and wait for their forward: the driver keeps the tensor, the rank sees the header."""

from collections import deque
from collections.abc import Iterator

from tandem.core.errors import Divergence
from tandem.core.ids import Epoch, Tick
from tandem.core.messages import Hidden
from tandem.ports import HiddenIn
from tandem.runtime.links import Decoder, Malformed


class Payloads:
    """One epoch's payloads by tick. What another epoch sends is handed back unseen and counted.

    The link takes payloads back in the order in which it gave them, so each waits for those before it.
    """

    def __init__(self, link: HiddenIn, epoch: Epoch) -> None:
        self.link = link
        self.stale = 0
        self._epoch = epoch
        self._decode: Decoder[Hidden] = Decoder(Hidden)
        self._waiting: dict[Tick, memoryview] = {}
        self._lent: deque[Tick | None] = deque()  # in the order received; None: nobody needs it any more

    def receive(self) -> Iterator[Hidden]:
        """The headers that have come. Raises Divergence for what is malformed or comes twice: the epoch ends."""
        while (received := self.link.receive()) is not None:
            try:
                header = self._decode(received[0])
            except Malformed as error:
                raise Divergence(f"a malformed header came with hidden states: {error}") from None
            if header.epoch != self._epoch:
                self.stale += 1
                self._lent.append(None)
                self._hand_back()
                continue
            if header.tick in self._waiting or header.tick in self._lent:
                raise Divergence(f"the hidden states of tick {header.tick} came twice")
            self._waiting[header.tick] = received[1]
            self._lent.append(header.tick)
            yield header
        if self.link.malformed:
            raise Divergence("a malformed message came with hidden states")

    def take(self, tick: Tick) -> memoryview:
        """The payload of a tick that is launched; valid until `done`."""
        return self._waiting.pop(tick)

    def done(self, tick: Tick) -> None:
        """The forward of this tick has read its input."""
        self._lent[self._lent.index(tick)] = None
        self._hand_back()

    def _hand_back(self) -> None:
        while self._lent and self._lent[0] is None:
            self._lent.popleft()
            self.link.release()
