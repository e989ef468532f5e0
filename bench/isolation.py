"""What a sick peer costs a healthy one: a process writes to two others, and one of them is stopped."""

import contextlib
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import msgspec

from bench.apart import answer, apart, ordered
from bench.ends import KINDS, MOONCAKE, End, FarEnd, Shape
from bench.rows import Row, row
from bench.way import Way
from kvtransfer.handshake import CONNECT_DEADLINE_S

BENCH = "transfer"
BAR = "<= 100 ms"
POOL = Shape(1, 256, 1 << 16)
PAGES = [(page, POOL.pages - 1 - page) for page in range(16)]
"""1 MiB that cannot be coalesced."""
PACE_S = 0.02
"""Between two writes."""
STOPPED, SILENT = "stopped in the middle", "silent at first contact"
SICKNESSES = (STOPPED, SILENT)
BUSY_S = 0.2
"""Of writing to a peer before it stops."""


class Order(msgspec.Struct, frozen=True):
    """One case. `careless`: what Tandem does not do, one engine for all peers and a write without a probe before it."""

    kind: str
    sickness: str
    careless: bool
    seconds: float


class Found(msgspec.Struct, frozen=True):
    """Milliseconds of each write to the healthy peer, before the other one is sick and while it is."""

    before: list[float]
    during: list[float]


def measure(*, quick: bool) -> list[Row]:
    """All cases. Raises CalledProcessError."""
    seconds = 2.0 if quick else 35.0  # a call that Mooncake gives up takes 30
    orders = [Order(kind, sickness, False, seconds) for kind in KINDS for sickness in SICKNESSES]
    if not quick:  # it takes a minute
        orders.append(Order(MOONCAKE, SILENT, True, seconds))
    return [row_of(order, apart("bench.isolation", order, Found)) for order in orders]


def row_of(order: Order, found: Found) -> Row:
    """The worst write, less what one takes usually."""
    usual_ms = statistics.median(found.before)
    how = f"{order.kind}, one engine, no probe" if order.careless else order.kind
    case = f"{how}: worst delay while another peer is {order.sickness}"
    judged = row(BENCH, case, max(found.during) - usual_ms, "ms", bar="" if order.careless else BAR)
    return msgspec.structs.replace(judged, reference="a write undisturbed", reference_value=usual_ms)


# the measuring process


def main(order: Order) -> NoReturn:
    """Measure one case."""
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-isolation-"))
        healthy_end, sick_end = (FarEnd(run_dir, name, POOL) for name in ("d0", "d1"))
        stack.callback(healthy_end.close)
        stack.callback(sick_end.close)
        near = End(run_dir, "p0", POOL)
        transport = near.open(order.kind)
        healthy = Way(near, transport, healthy_end.doors.hellos[order.kind])
        other = transport if order.careless else near.open(order.kind)
        sick = Way(near, other, sick_end.doors.hellos[order.kind])
        healthy.connect(CONNECT_DEADLINE_S)
        before = writes_ms(healthy, order.seconds / 5)
        if order.sickness == STOPPED:
            sick.connect(CONNECT_DEADLINE_S)
            keep(partial(sick.write, 0, PAGES))
            time.sleep(BUSY_S)
        sick_end.process.send_signal(signal.SIGSTOP)
        if order.sickness == SILENT:
            keep(partial(sick.write, 0, PAGES) if order.careless else partial(sick.connect, CONNECT_DEADLINE_S))
            time.sleep(BUSY_S)
        found = Found(before, writes_ms(healthy, order.seconds))
    answer(found)


def writes_ms(way: Way, seconds: float) -> list[float]:
    """One after the other, each timed; at least one."""
    found: list[float] = []
    end_s = time.monotonic() + seconds
    while not found or time.monotonic() < end_s:
        start_s = time.perf_counter()
        way.write(0, PAGES)
        found.append((time.perf_counter() - start_s) * 1000)
        time.sleep(PACE_S)
    return found


def keep(attempt: Callable[[], None]) -> None:
    """Try again and again, on a thread, for as long as the process lives."""

    def run() -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                attempt()

    threading.Thread(target=run, name="sick peer", daemon=True).start()


if __name__ == "__main__":
    main(ordered(Order))
