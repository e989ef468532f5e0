"""What the caller finds out about the two hosts together. It does its own part, and asks the listener for the other."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tandem.doctor.end import End
from tandem.doctor.known import PAGE_BYTES, PATTERN
from tandem.doctor.link import Caller
from tandem.doctor.report import Finding, fail, ok, warn
from tandem.doctor.words import (
    Card,
    CheckKnown,
    Meet,
    Moved,
    OpenPort,
    Outcome,
    Ping,
    Pong,
    Port,
    SendRaw,
    WriteKnown,
    WriteLarge,
)

MEET_S = 30.0
"""The other end starts its transport meanwhile."""
WRITE_S = 90.0
"""More than a write or a raw connection may take at the other end."""
ROUNDS = 200
CLOCKS_MS = 10.0
"""What timelines of several hosts can bear: a layer's transfer takes milliseconds."""
CLOCKS_FAIL_MS = 1000.0
"""A rank that is restarted must be known as the later one."""
LATENCY_US = 2000.0
RATIO = 0.5


class Way(NamedTuple):
    """One direction: what its two ends do, whichever of them is here."""

    name: str
    one_host: bool
    receiver: Card
    open_port: Callable[[], Port]
    send_raw: Callable[[Port], Moved]
    write_known: Callable[[], Outcome]
    check_known: Callable[[], Outcome]
    write_large: Callable[[], Moved]


def examine(link: Caller, end: End) -> Iterator[Finding]:
    """Everything about the two, as soon as it is known. Raises Lost."""
    end.meet(link.ask(Meet(end.card), Meet, MEET_S).card)
    ours, theirs = end.card, end.peer
    yield ok("peer", f"{theirs.name} at {theirs.host}; this end is {ours.name} at {ours.host}")
    yield judge_versions(ours, theirs)
    offset_ms, error_ms, latency_us = compare_clocks(link)
    yield judge_clocks(f"{theirs.host} to {ours.host}", offset_ms, error_ms)
    yield judge_latency(latency_us)
    for way in ways(link, end):
        yield from examine_way(way)


def ways(link: Caller, end: End) -> list[Way]:
    """Both directions, or the only one on one host."""
    ours, theirs = end.card, end.peer
    one_host = ours.host == theirs.host
    there = Way(
        f"{ours.host} to {theirs.host}",
        one_host,
        theirs,
        lambda: link.ask(OpenPort(), Port),
        end.send_raw,
        end.write_known,
        lambda: link.ask(CheckKnown(), Outcome),
        end.write_large,
    )
    back = Way(
        f"{theirs.host} to {ours.host}",
        one_host,
        ours,
        end.open_port,
        lambda port: link.ask(SendRaw(port), Moved, WRITE_S),
        lambda: link.ask(WriteKnown(), Outcome, WRITE_S),
        end.check_known,
        lambda: link.ask(WriteLarge(), Moved, WRITE_S),
    )
    return [there] if one_host else [there, back]


def examine_way(way: Way) -> Iterator[Finding]:
    """Ports, the known answer and bandwidth of one direction."""
    port = way.open_port()
    raw = way.send_raw(port)
    yield judge_port(way.name, port, raw, way.receiver.ports)
    written = way.write_known()
    checked = written if written.detail else way.check_known()
    yield judge_known(way.name, written, checked)
    transport = None if checked.detail else way.write_large()
    yield judge_bandwidth(way.name, transport, raw, one_host=way.one_host)


def compare_clocks(link: Caller) -> tuple[float, float, float]:
    """How far the listener's clock is ahead and how sure that is, in ms; and half of a round trip, in us.

    The shortest round trip tells most: the listener looked at its clock somewhere within it.
    """
    trips: list[tuple[int, int]] = []
    for _ in range(ROUNDS):
        begin, wall = time.perf_counter_ns(), time.time_ns()
        theirs = link.ask(Ping(), Pong).wall_ns
        took = time.perf_counter_ns() - begin
        trips.append((took, theirs - wall - took // 2))
    shortest, offset = min(trips)
    return offset / 1e6, shortest / 2e6, statistics.median(took for took, _ in trips) / 2e3


def judge_versions(ours: Card, theirs: Card) -> Finding:
    """Packages may differ, but then nobody has tried them together."""
    names = sorted(ours.versions.keys() | theirs.versions.keys())
    pairs = [(name, ours.versions.get(name) or "absent", theirs.versions.get(name) or "absent") for name in names]
    other = [
        f"{name} {here} at {ours.host} and {there} at {theirs.host}" for name, here, there in pairs if here != there
    ]
    if other:
        return warn("versions", f"{', '.join(other)}: install the same on both")
    return ok("versions", "the same on both")


def judge_clocks(pair: str, offset_ms: float, error_ms: float) -> Finding:
    """`offset_ms` is how far the first of the pair is ahead of the second, give or take `error_ms`."""
    said = f"offset of {pair} is {offset_ms:+.3f} ms, give or take {error_ms:.3f} ms"
    if abs(offset_ms) - error_ms > CLOCKS_FAIL_MS:
        return fail(
            "clock",
            f"{said}: which rank was started later is told by its clock; set both by NTP (chrony, systemd-timesyncd)",
        )
    if abs(offset_ms) - error_ms > CLOCKS_MS:
        return warn("clock", f"{said}: timelines of the two will not fit together; set both by NTP")
    return ok("clock", said)


def judge_latency(latency_us: float) -> Finding:
    """One way, of an empty message."""
    said = f"{latency_us:.0f} us one way for a message (half of the median of {ROUNDS} round trips)"
    if latency_us > LATENCY_US:
        return warn("latency", f"{said}: each hop of a ring waits that long; keep the ranks of a group closer together")
    return ok("latency", said)


def judge_port(way: str, port: Port, raw: Moved, ports: tuple[int, int]) -> Finding:
    """Ranks bind ports that the system picks."""
    if raw.detail:
        return fail("port", f"{way}: {raw.detail}: open the ports {ports[0]} to {ports[1]} from one to the other")
    return ok("port", f"{way}: port {port.port}, one that the system picked, was bound and reached")


def judge_known(way: str, written: Outcome, checked: Outcome) -> Finding:
    """A pattern that was written by the real transport, and what its receiver found."""
    if written.detail:
        return fail("known-answer", f"{way}: {written.detail}")
    if checked.detail:
        return fail(
            "known-answer",
            f"{way}: {checked.detail}; serve nothing over this path: look for a faulty card, driver or Mooncake wheel",
        )
    blocks = f"{PATTERN} scattered blocks of {PAGE_BYTES} bytes"
    return ok("known-answer", f"{way}: {blocks} were written and are right, byte for byte")


def judge_bandwidth(way: str, transport: Moved | None, raw: Moved, *, one_host: bool) -> Finding:
    """The transport, if it was measured, against the network as it is.

    On one host both ends share its cores, and the ratio says nothing.
    """
    if transport is not None and transport.detail:
        return fail("bandwidth", f"{way}: {transport.detail}")
    if transport is None or raw.detail:
        measured = [] if raw.detail else [f"raw TCP socket {raw.gb_s:.2f} GB/s"]
        return warn("bandwidth", f"{way}: {', '.join([*measured, 'not compared: see the failure before'])}")
    ratio = transport.gb_s / raw.gb_s
    said = f"{way}: Mooncake {transport.gb_s:.2f} GB/s, raw TCP socket {raw.gb_s:.2f} GB/s, ratio {ratio:.2f}"
    if ratio < RATIO and not one_host:
        return warn("bandwidth", f"{said}: give the ranks more cores (both ends spin), or raise MC_TCP_LANES_PER_PEER")
    return ok("bandwidth", said)
