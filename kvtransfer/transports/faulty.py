"""A transport that fails on purpose, around any other: for tests and drills, only with TANDEM_TEST_FAULTS=1."""

import ctypes
import enum
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec

from kvtransfer.transports.blocks import Block
from tandem.core.errors import ConfigError
from tandem.core.events import Written
from tandem.core.messages import Hello
from tandem.ports import Transport

SWITCH = "TANDEM_TEST_FAULTS"
PLAN = "TANDEM_TEST_FAULT_PLAN"
"""JSON of a Faults, for the processes of a test: {"at": {"1": "delay"}, "seconds": 2}."""

log = logging.getLogger("tandem.faults")


class Fault(enum.Enum):
    """What happens instead of an honest write."""

    FAIL_SETTLED = "fail_settled"  # nothing is written
    FAIL_UNSETTLED = "fail_unsettled"  # nothing is written, but nobody can know
    DELAY = "delay"  # written after a while
    LAND_LATE = "land_late"  # reported unsettled at once, written after a while
    LAND_PARTLY = "land_partly"  # the first half is written, reported unsettled
    CORRUPT = "corrupt"  # written, but for one byte that is another one


@dataclass(frozen=True)
class Faults:
    """Which writes suffer what: keys count the writes to all peers from 1, in the order they are begun."""

    at: dict[int, Fault]
    seconds: float = 0.1  # of DELAY and LAND_LATE


class Tally:
    """Counts over all transports of a process, from any thread."""

    def __init__(self) -> None:
        self.acted: Counter[Fault] = Counter()
        self._writes = 0
        self._lock = threading.Lock()

    def next_write(self) -> int:
        """Its number, from 1."""
        with self._lock:
            self._writes += 1
            return self._writes

    def count(self, fault: Fault) -> None:
        """A fault has bitten."""
        with self._lock:
            self.acted[fault] += 1
        log.warning("fault acted: %s", fault.value)


class FaultyTransport:
    """Any Transport, with faults. The tally counts each fault where it bites: LAND_LATE when it has landed.

    The known answers of handshakes are neither counted nor hurt.
    """

    def __init__(self, inner: Transport, faults: Faults, tally: Tally) -> None:
        """Raises ConfigError without TANDEM_TEST_FAULTS=1."""
        if os.environ.get(SWITCH) != "1":
            raise ConfigError(f"faults are injected only with {SWITCH}=1")
        self.kind = inner.kind
        self.endpoint = inner.endpoint
        self._inner = inner
        self._faults = faults
        self.tally = tally
        self._late: list[threading.Thread] = []

    def register(self, base: int, length: int) -> None:
        """As the inner transport."""
        self._inner.register(base, length)

    def connect(self, peer: Hello, deadline_s: float) -> None:
        """As the inner transport."""
        self._inner.connect(peer, deadline_s)

    def write(self, peer: Hello, blocks: Sequence[Block], deadline_s: float) -> Written:
        """As the inner transport, but for the writes that the plan names."""
        if blocks and blocks[0][1] == peer.probe:
            return self._inner.write(peer, blocks, deadline_s)
        fault = self._faults.at.get(self.tally.next_write())
        match fault:
            case None:
                return self._inner.write(peer, blocks, deadline_s)
            case Fault.FAIL_SETTLED:
                self.tally.count(fault)
                return Written.FAILED_SETTLED
            case Fault.FAIL_UNSETTLED:
                self.tally.count(fault)
                return Written.FAILED_UNSETTLED
            case Fault.DELAY:
                self.tally.count(fault)
                time.sleep(self._faults.seconds)
                return self._inner.write(peer, blocks, deadline_s)
            case Fault.LAND_LATE:
                self._land_late(peer, list(blocks), deadline_s)
                return Written.FAILED_UNSETTLED
            case Fault.LAND_PARTLY:
                self._inner.write(peer, _half(blocks), deadline_s)
                self.tally.count(fault)
                return Written.FAILED_UNSETTLED
            case Fault.CORRUPT:
                return self._corrupt(peer, blocks, deadline_s)
            case _:
                assert_never(fault)

    def close(self) -> None:
        """Wait for late writes, then close the inner transport."""
        for thread in self._late:
            thread.join()
        self._inner.close()

    def _corrupt(self, peer: Hello, blocks: Sequence[Block], deadline_s: float) -> Written:
        """The source stays as it is: its pages are there to be read by others."""
        result = self._inner.write(peer, blocks, deadline_s)
        if result is Written.OK:
            result = self._inner.write(peer, [_wrong_byte(blocks[0])], deadline_s)
            self.tally.count(Fault.CORRUPT)
        return result

    def _land_late(self, peer: Hello, blocks: list[Block], deadline_s: float) -> None:
        def land() -> None:
            time.sleep(self._faults.seconds)
            self._inner.write(peer, blocks, deadline_s)
            self.tally.count(Fault.LAND_LATE)

        thread = threading.Thread(target=land, name="late write", daemon=True)
        self._late.append(thread)
        thread.start()


def with_faults(make: Callable[[], Transport]) -> Callable[[], Transport]:
    """Makes transports as `make` does, unless the environment has the switch and a plan."""
    plan = os.environ.get(PLAN)
    if os.environ.get(SWITCH) != "1" or plan is None:
        return make
    faults, tally = msgspec.json.decode(plan, type=Faults), Tally()
    return lambda: FaultyTransport(make(), faults, tally)


def _half(blocks: Sequence[Block]) -> list[Block]:
    """Some of the bytes, never all of them, unless there is but one."""
    if len(blocks) > 1:
        return list(blocks[: len(blocks) // 2])
    return [(source, destination, (length + 1) // 2) for source, destination, length in blocks]


def _wrong_byte(block: Block) -> Block:
    """Puts another byte of the block in the place of its first. Raises ValueError if all are the same."""
    source, destination, length = block
    content = ctypes.string_at(source, length)
    other = length - len(content.lstrip(content[:1]))
    if other == length:
        raise ValueError("all bytes of the block are the same: none can be put wrong with another one")
    return source + other, destination, 1
