"""What is said of two hosts, by what was measured between them."""

import time
from typing import Any

import msgspec
import pytest

from tandem.doctor.pair import (
    compare_clocks,
    judge_bandwidth,
    judge_clocks,
    judge_known,
    judge_latency,
    judge_port,
    judge_versions,
)
from tandem.doctor.report import Finding, Level
from tandem.doctor.words import Card, Moved, Outcome, Ping, Pong, Port

PORTS = (32768, 60999)
ONE = Card("10.0.0.1", "one", {"python": "3.11.7", "torch": "2.13.0"}, PORTS, b"", None)
WAY = "10.0.0.1 to 10.0.0.2"
GIB = 1 << 30


class Ahead:
    """Answers pings with a clock that is ahead."""

    def __init__(self, ahead_ns: int) -> None:
        self.ahead_ns = ahead_ns

    def ask(self, word: Ping, kind: type[Pong]) -> Pong:
        return kind(time.time_ns() + self.ahead_ns)


@pytest.mark.parametrize("ahead_ms", [0, 5000, -5000])
def test_the_offset_of_a_clock_is_found_within_the_error_that_is_told(ahead_ms: int):
    link: Any = Ahead(ahead_ms * 1_000_000)
    offset_ms, error_ms, latency_us = compare_clocks(link)
    assert abs(offset_ms - ahead_ms) <= error_ms + 0.01, "time.time_ns and perf_counter_ns may part by microseconds"
    assert error_ms * 1000 <= latency_us


def said(finding: Finding, level: Level, *words: str) -> None:
    assert finding.level is level
    assert [word for word in words if word not in finding.text] == [], finding.text


def test_clocks():
    said(judge_clocks(WAY, 0.1, 0.05), Level.OK, "+0.100 ms, give or take 0.050 ms")
    said(judge_clocks(WAY, -12.0, 0.5), Level.WARN, "-12.000 ms", "timelines", "NTP")
    said(judge_clocks(WAY, 12.0, 5.0), Level.OK)
    said(judge_clocks(WAY, -1500.0, 0.5), Level.FAIL, "started later", "NTP")


def test_latency():
    said(judge_latency(80.4), Level.OK, "80 us one way")
    said(judge_latency(2500.0), Level.WARN, "2500 us", "each hop of a ring", "closer together")


def test_versions():
    two = msgspec.structs.replace(ONE, host="10.0.0.2")
    said(judge_versions(ONE, two), Level.OK, "the same on both")
    other = msgspec.structs.replace(two, versions={"python": "3.11.7", "redis": "8"})
    said(
        judge_versions(ONE, other),
        Level.WARN,
        "redis absent at 10.0.0.1 and 8 at 10.0.0.2",
        "torch 2.13.0 at 10.0.0.1 and absent at 10.0.0.2",
        "install the same on both",
    )


def test_ports():
    said(judge_port(WAY, Port(4711, b""), Moved(1, 1.0), PORTS), Level.OK, WAY, "port 4711", "bound and reached")
    closed = Moved(detail="port 4711 of 10.0.0.2: timed out")
    said(judge_port(WAY, Port(4711, b""), closed, PORTS), Level.FAIL, WAY, "timed out", "open the ports 32768 to 60999")


def test_known_answers():
    good = Outcome()
    said(judge_known(WAY, good, good), Level.OK, WAY, "1024 scattered blocks of 4096 bytes", "byte for byte")
    silent = Outcome("10.0.0.2:15001 was silent for 10 s; open the ports")
    said(judge_known(WAY, silent, silent), Level.FAIL, WAY, "was silent")
    said(judge_known(WAY, good, Outcome("3 bytes are wrong")), Level.FAIL, "3 bytes are wrong", "serve nothing over")


def test_bandwidth():
    raw = Moved(4 * GIB, 2.0)
    fast, slow, failed = Moved(3 * GIB, 2.0), Moved(GIB, 2.0), Moved(detail="the write ended as failed_unsettled")
    said(judge_bandwidth(WAY, fast, raw, one_host=False), Level.OK, WAY, "1.61 GB/s", "2.15 GB/s", "ratio 0.75")
    said(judge_bandwidth(WAY, slow, raw, one_host=False), Level.WARN, "ratio 0.25", "MC_TCP_LANES_PER_PEER")
    said(judge_bandwidth(WAY, slow, raw, one_host=True), Level.OK, "ratio 0.25")
    said(judge_bandwidth(WAY, None, raw, one_host=False), Level.WARN, "raw TCP socket 2.15 GB/s", "not compared")
    said(judge_bandwidth(WAY, fast, failed, one_host=False), Level.WARN, "not compared: see the failure before")
    said(judge_bandwidth(WAY, failed, raw, one_host=False), Level.FAIL, f"{WAY}: the write ended")
