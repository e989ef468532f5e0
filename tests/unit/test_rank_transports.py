"""Which transports a rank has: what was asked for, or a fallback that was configured and is told of, or none at all."""

import logging
from typing import Literal

import pytest
from peer_rig import ReachingTransport

from kvtransfer.transports.nowhere import NoTransport
from tandem.core.config import Group, Limits, RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, LayerId
from tandem.engine.memory import PageMemory
from tandem.ports import TAIL_BYTES
from tandem.runtime import transports
from tandem.runtime.transports import open_edges

MEMORY = PageMemory((LayerId(0), LayerId(2)), 4, 64)


def options(role: RoleName, protocol: Literal["tcp", "rdma"], fallback: Literal["none", "tcp"] = "none") -> RankOptions:
    return RankOptions(
        cluster="c",
        group=Group(role, "g0", (2,)),
        rank=LEADER,
        model="fake:2",
        served_model_name="m",
        limits=Limits(),
        registry_url="",
        run_dir="",
        transport_protocol=protocol,
        transport_fallback=fallback,
    )


class Engines:
    """There is no RDMA device here."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.registered: list[tuple[int, int]] = []

    def __call__(self, host: str, protocol: str, device: str) -> ReachingTransport:
        if protocol == "rdma":
            raise ConfigError("no RDMA device")
        self.made.append((host, protocol))
        transport = ReachingTransport(host)
        transport.register = lambda base, length: self.registered.append((base, length))  # type: ignore[method-assign]
        return transport


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr(transports, "MooncakeTransport", made)
    return made


def test_each_transport_has_the_pool_and_its_tail_registered(engines: Engines) -> None:
    edges, degraded = open_edges(options(RoleName.DECODE, "tcp"), MEMORY, 1)
    for group in ("p", "q"):
        edges.open(group)
    assert engines.made == [("127.0.0.1", "tcp")] * 2
    assert engines.registered == [(MEMORY.region.base, 2 * 4 * 64 + TAIL_BYTES)] * 2
    assert degraded == ""


def test_what_was_asked_for_and_cannot_be_had_ends_the_start(engines: Engines) -> None:
    with pytest.raises(ConfigError, match="no RDMA device"):
        open_edges(options(RoleName.PREFILL, "rdma"), MEMORY, 1)


def test_a_configured_fallback_is_used_and_told(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        edges, degraded = open_edges(options(RoleName.PREFILL, "rdma", "tcp"), MEMORY, 1)
    assert edges.open("d").endpoint == "127.0.0.1"
    assert degraded == "tcp is used instead of rdma: no RDMA device"
    assert f"degraded: {degraded}" in caplog.text


def test_a_colocated_rank_has_none(engines: Engines) -> None:
    edges, degraded = open_edges(options(RoleName.COLOCATED, "rdma"), MEMORY, 1)
    assert isinstance(edges.open("d"), NoTransport)
    assert degraded == ""
