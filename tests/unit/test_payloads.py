"""Hidden states between link and engine: nothing of another epoch is ever computed on, and slots go back in order."""

from collections import deque

import pytest

from tandem.core.errors import Divergence
from tandem.core.ids import Epoch, Tick
from tandem.core.messages import Hidden
from tandem.runtime.links import encode
from tandem.runtime.payloads import Payloads

EPOCH = Epoch(7)


class Link:
    """A PulledIn that the test fills by hand."""

    def __init__(self) -> None:
        self.malformed = 0
        self.released = 0
        self._messages: deque[tuple[bytes, memoryview]] = deque()

    def put(self, tick: int, payload: bytes, epoch: Epoch = EPOCH) -> None:
        self.put_raw(encode(Hidden(epoch, Tick(tick), 1, 0)), payload)

    def put_raw(self, header: bytes, payload: bytes) -> None:
        self._messages.append((header, memoryview(payload)))

    def receive(self) -> tuple[bytes, memoryview] | None:
        return self._messages.popleft() if self._messages else None

    def release(self) -> None:
        self.released += 1


def opened() -> tuple[Link, Payloads]:
    link = Link()
    return link, Payloads(link, EPOCH)


def ticks(payloads: Payloads) -> list[int]:
    return [header.tick for header in payloads.receive()]


def test_each_tick_gets_its_own_payload():
    link, payloads = opened()
    link.put(3, b"three")
    link.put(5, b"five")
    assert ticks(payloads) == [3, 5]
    assert bytes(payloads.take(Tick(5))) == b"five"
    assert bytes(payloads.take(Tick(3))) == b"three"


def test_a_payload_of_another_epoch_never_replaces_ours():
    """An old process whose socket reconnects to the same address: its header names a tick that we wait for."""
    link, payloads = opened()
    link.put(3, b"old, before", Epoch(6))
    link.put(3, b"ours")
    link.put(3, b"old, after", Epoch(6))
    assert ticks(payloads) == [3]
    assert bytes(payloads.take(Tick(3))) == b"ours"
    assert payloads.stale == 2


def test_slots_go_back_in_the_order_received_whoever_needed_them():
    link, payloads = opened()
    link.put(1, b"a")
    link.put(1, b"old", Epoch(6))
    link.put(2, b"b")
    assert ticks(payloads) == [1, 2]
    assert link.released == 0, "the stale one waits for the one before it"
    payloads.take(Tick(1))
    payloads.done(Tick(1))
    assert link.released == 2
    payloads.take(Tick(2))
    payloads.done(Tick(2))
    assert link.released == 3


def test_a_tick_that_comes_twice_ends_the_epoch():
    link, payloads = opened()
    link.put(1, b"a")
    link.put(1, b"b")
    with pytest.raises(Divergence, match="came twice"):
        ticks(payloads)


def test_what_is_malformed_ends_the_epoch():
    link, payloads = opened()
    link.put_raw(b"\xc1", b"a")
    with pytest.raises(Divergence, match="malformed header"):
        ticks(payloads)
    link.malformed = 1
    with pytest.raises(Divergence, match="malformed message"):
        ticks(payloads)
