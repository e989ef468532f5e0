"""What a Mooncake transport does with its engine, with engines that only listen."""

import gc
import os
import socket
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest
from waiting import eventually

from kvtransfer.transports import mooncake
from kvtransfer.transports.mooncake import MooncakeTransport
from kvtransfer.transports.tcp_ports import listening
from tandem.core.errors import ConfigError
from tandem.core.events import Written
from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello, Region

PEER = Hello("d", RankId(0), 1, 1, "f", "mooncake-tcp", "there", Region(0, LayerId(0), LayerId(1), 1, 1))


class ListeningEngine:
    """Listens on two ports, as the real one does: the next two of a list, or any."""

    ports: ClassVar[list[int]] = []
    starts: ClassVar[list[int]] = []  # what `initialize` says, if not 0

    def initialize(self, host: str, *_: str) -> int:
        chosen = [self.ports.pop(0) if self.ports else 0 for _ in range(2)]
        self.sockets = [socket.create_server((host, port)) for port in chosen]
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        return self.starts.pop(0) if self.starts else 0

    def get_rpc_port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    def batch_register_memory(self, bases: list[int], lengths: list[int]) -> int:
        return 0

    def batch_transfer_sync_write(self, endpoint: str, *_: list[int]) -> int:
        self.entered.set()
        assert self.gate.wait(60)
        return 0

    def send_probe(self, endpoint: str) -> int:
        return self.batch_transfer_sync_write(endpoint)

    def __del__(self) -> None:
        for one in self.sockets:
            one.close()


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mooncake, "_import_engine", lambda: ListeningEngine)
    monkeypatch.setattr(mooncake, "ACCEPT_S", 0.0)
    monkeypatch.setattr(mooncake, "_RETIRED", set())
    monkeypatch.setattr(ListeningEngine, "ports", [])
    monkeypatch.setattr(ListeningEngine, "starts", [])
    monkeypatch.setattr("os.environ", {name: value for name, value in os.environ.items() if name[:3] != "MC_"})
    yield
    gc.collect()


def engine_of(transport: MooncakeTransport) -> ListeningEngine:
    engine = transport._engine
    assert isinstance(engine, ListeningEngine)
    return engine


def test_closing_destroys_the_engine() -> None:
    transport = MooncakeTransport("127.0.0.1")
    port = engine_of(transport).get_rpc_port()
    assert port in listening()
    transport.close()
    assert port not in listening()
    transport.close()
    assert transport.write(PEER, [(0, 0, 1)], 1.0) is Written.FAILED_SETTLED


def test_an_engine_that_somebody_else_holds_is_not_taken_for_destroyed() -> None:
    transport = MooncakeTransport("127.0.0.1")
    held = transport._engine
    with pytest.raises(AssertionError, match="somebody else holds the engine"):
        transport.close()
    del held


def test_closing_waits_for_calls_and_gives_up_on_those_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "CLOSE_S", 0.0)
    transport = MooncakeTransport("127.0.0.1")
    engine_of(transport).gate.clear()
    results: list[Written] = []
    writing = threading.Thread(target=lambda: results.append(transport.write(PEER, [(0, 0, 1)], 1.0)))
    writing.start()
    eventually(engine_of(transport).entered.is_set)
    with pytest.raises(TimeoutError, match=transport.endpoint):
        transport.close()
    assert transport.write(PEER, [(0, 0, 1)], 1.0) is Written.FAILED_SETTLED, "nothing begins any more"
    engine_of(transport).gate.set()
    writing.join()
    assert results == [Written.OK]
    transport.close()
    assert transport._engine is None


def test_a_write_of_many_calls_stops_between_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "BLOCKS_PER_CALL", 1)
    transport = MooncakeTransport("127.0.0.1")
    engine_of(transport).gate.clear()
    results: list[Written] = []
    blocks = [(0, 0, 1), (2, 5, 1)]
    writing = threading.Thread(target=lambda: results.append(transport.write(PEER, blocks, 60.0)))
    writing.start()
    eventually(engine_of(transport).entered.is_set)
    closing = threading.Thread(target=transport.close)
    closing.start()
    eventually(lambda: transport._gate.shut)
    engine_of(transport).gate.set()
    writing.join()
    closing.join()
    assert results == [Written.FAILED_SETTLED]


def test_no_engine_listens_where_one_was_destroyed() -> None:
    """Whoever still writes to that one would be heard. The second engine gets one of the first one's ports at first."""
    first = MooncakeTransport("127.0.0.1")
    ports = [one.getsockname()[1] for one in engine_of(first).sockets]
    first.close()
    for port in ports:
        ListeningEngine.ports = [0, port]
        second = MooncakeTransport("127.0.0.1")
        assert not listening() & {*ports}
        second.close()


def test_who_asked_for_tcp_is_not_sent_to_look_for_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListeningEngine, "starts", [-1])
    with pytest.raises(ConfigError, match="with tcp: name an address of this host"):
        MooncakeTransport("127.0.0.1", "tcp")


def test_a_protocol_that_cannot_be_had_leaves_room_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListeningEngine, "starts", [-1])
    with pytest.raises(ConfigError, match=r"cannot start on .* with rdma: .*ibv_devices"):
        MooncakeTransport("127.0.0.1", "rdma")
    transport = MooncakeTransport("127.0.0.1", "tcp")
    assert transport.kind == "mooncake-tcp"
    transport.close()
