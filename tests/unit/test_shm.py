"""Whatever a writer says, the receiver copies all of a good request or nothing, and goes on; and what is refused."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from waiting import eventually

from kvtransfer.transports import shm_receiver
from kvtransfer.transports.shm import ShmTransport
from kvtransfer.transports.shm_packets import MAX_PACKET_BYTES, Answer, Attach, Copy
from tandem.core.config import Group, Limits, RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.core.events import Written
from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello
from tandem.engine.memory import PageMemory
from tandem.runtime.links import encode
from tandem.runtime.transports import open_edges

LAYERS = (LayerId(0), LayerId(1))
PAGE, PAGES = 4096, 16
DEADLINE_S = 60.0


class End:
    """A rank's pool and transport."""

    def __init__(self, run_dir: str, name: str) -> None:
        self.memory = PageMemory(LAYERS, PAGES, PAGE, shared=True)
        assert self.memory.memfd is not None
        self.transport = ShmTransport(run_dir, name, self.memory.memfd)
        region = self.memory.region
        self.transport.register(region.base, region.bytes)
        self.hello = Hello("d0", RankId(0), 1, 1, "f", "shm", self.transport.endpoint, region)
        self.path = self.transport.endpoint.split(":")[2]

    def write(self, to: "End", page: int = 0) -> Written:
        """This page, to the same place."""
        here, there = self.memory.region.base, to.memory.region.base
        return self.transport.write(to.hello, [(here + page * PAGE, there + page * PAGE, PAGE)], DEADLINE_S)


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path)


@pytest.fixture
def end(run_dir: str) -> Iterator[Callable[[str], End]]:
    made: list[End] = []

    def make(name: str) -> End:
        made.append(End(run_dir, name))
        return made[-1]

    yield make
    for one in made:
        one.transport.close()
        one.memory.close()


@pytest.fixture
def writer(end: Callable[[str], End]) -> End:
    made = end("p0")
    made.memory.buffer[:] = b"w" * len(made.memory.buffer)
    return made


@pytest.fixture
def receiver(end: Callable[[str], End]) -> End:
    return end("d0")


@pytest.fixture
def stranger(receiver: End) -> Iterator[socket.socket]:
    """A bare connection to the receiver."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.settimeout(DEADLINE_S)
        made.connect(receiver.path)
        yield made


def heard(stranger: socket.socket) -> Answer | None:
    """The next answer, None when the connection ends."""
    try:
        data = stranger.recv(MAX_PACKET_BYTES)
    except ConnectionResetError:
        return None
    return msgspec.msgpack.decode(data, type=Answer) if data else None


def refusal(stranger: socket.socket) -> str:
    answer = heard(stranger)
    assert answer is not None
    return answer.refused


def test_the_same_page_is_there_after_a_write(writer: End, receiver: End) -> None:
    writer.transport.connect(receiver.hello, DEADLINE_S)
    assert writer.write(receiver, 3) is Written.OK
    assert bytes(receiver.memory.buffer) == bytes(3 * PAGE) + b"w" * PAGE + bytes(12 * PAGE)


@pytest.mark.parametrize("data", [b"\xc1", b"nonsense", encode(Answer("")), b"\x91" * 20_000, b"x" * 40_000])
def test_nonsense_ends_the_connection_and_nothing_else(
    writer: End, receiver: End, stranger: socket.socket, data: bytes
) -> None:
    stranger.send(data)
    assert heard(stranger) is None
    assert writer.write(receiver) is Written.OK


def test_a_copy_before_the_memory_is_refused(receiver: End, stranger: socket.socket) -> None:
    stranger.send(encode(Copy(((0, receiver.memory.region.base, 1),))))
    assert "the writer's memory has 0" in refusal(stranger)


def test_an_introduction_without_memory_is_refused(receiver: End, stranger: socket.socket) -> None:
    stranger.send(encode(Attach(receiver.transport.endpoint)))
    assert "no memory came" in refusal(stranger)


@pytest.mark.parametrize("sealable", [True, False], ids=["may shrink", "no memfd"])
def test_memory_that_could_vanish_while_it_is_read_is_refused(
    writer: End, receiver: End, stranger: socket.socket, run_dir: str, sealable: bool
) -> None:
    if sealable:
        file = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    else:
        file = os.open(os.path.join(run_dir, "file"), os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, PAGE)
    socket.send_fds(stranger, [encode(Attach(receiver.transport.endpoint))], [file])
    assert "cannot be mapped" in refusal(stranger)
    os.close(file)
    assert writer.write(receiver) is Written.OK


def test_a_copy_of_what_is_not_there_is_refused_whole(writer: End, receiver: End, stranger: socket.socket) -> None:
    base, length = receiver.memory.region.base, PAGES * PAGE
    assert writer.memory.memfd is not None
    socket.send_fds(stranger, [encode(Attach(receiver.transport.endpoint))], [writer.memory.memfd])
    assert heard(stranger) == Answer()
    good = (0, base, PAGE)
    bad = [
        (os.fstat(writer.memory.memfd).st_size - 1, base, 2),
        (-1, base, 2),
        (0, base, -1),
        (0, base - 1, 2),
        (0, base + length - 1, 2),
        (2**63, base, 1),
        (0, 2**64 - 1, 1),
        (0, base, 2**64 - 1),
    ]
    for block in bad:
        stranger.send(encode(Copy((good, block))))
        assert refusal(stranger) != ""
    assert not any(receiver.memory.buffer)
    stranger.send(encode(Copy((good,))))
    assert heard(stranger) == Answer()
    assert bytes(receiver.memory.buffer[:PAGE]) == b"w" * PAGE


def test_a_piece_is_copied_after_the_other(writer: End, receiver: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_receiver, "PIECE_BYTES", 1000)
    writer.memory.buffer[:] = os.urandom(len(writer.memory.buffer))
    here, there, size = writer.memory.region.base, receiver.memory.region.base, 3 * PAGE + 1
    assert writer.transport.write(receiver.hello, [(here + 5, there + 7, size)], DEADLINE_S) is Written.OK
    assert receiver.memory.buffer[7 : 7 + size] == writer.memory.buffer[5 : 5 + size]
    assert not any(receiver.memory.buffer[:7])
    assert not any(receiver.memory.buffer[7 + size :])


def test_one_writer_too_many_is_turned_away(
    writer: End, receiver: End, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger.send(encode(Copy(())))
    assert heard(stranger) == Answer()
    monkeypatch.setattr(shm_receiver, "MAX_WRITERS", 1)
    assert writer.write(receiver) is Written.FAILED_SETTLED
    stranger.send(encode(Copy(())))
    assert heard(stranger) == Answer(), "the first one stays"


def test_memory_of_a_writer_that_has_gone_is_unmapped(writer: End, receiver: End) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:tandem pages")

    before = mapped()
    assert writer.write(receiver) is Written.OK
    assert mapped() == before + 1
    writer.transport.close()
    eventually(lambda: mapped() == before, "the receiver hears that it has gone")


def test_who_asks_without_reading_is_hung_up_on(writer: End, receiver: End, stranger: socket.socket) -> None:
    stranger.setblocking(False)

    def hung_up() -> bool:
        try:
            while stranger.send(encode(Copy(()))):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        raise AssertionError("nothing was sent")

    eventually(hung_up, "the receiver does not wait for room for an answer")
    assert writer.write(receiver) is Written.OK


def test_a_transport_that_has_closed_does_nothing_and_says_so(writer: End, receiver: End) -> None:
    for closed in (writer, receiver):
        closed.transport.close()
        closed.transport.close()
        assert writer.write(receiver) is Written.FAILED_SETTLED
        with pytest.raises(ConnectionError):
            writer.transport.connect(receiver.hello, DEADLINE_S)


@pytest.mark.parametrize("mode", [0o755, 0o500])
def test_a_run_directory_that_others_can_enter_is_refused(run_dir: str, mode: int) -> None:
    Path(run_dir).chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
        ShmTransport(run_dir, "d0", 0)


def test_a_path_that_is_a_directory_is_refused_by_name(run_dir: str) -> None:
    (Path(run_dir) / "d0").mkdir()
    with pytest.raises(ConfigError, match=r"cannot listen on .*/d0"):
        ShmTransport(run_dir, "d0", 0)


def test_a_rank_makes_transports_with_endpoints_of_their_own(run_dir: str) -> None:
    group = Group(RoleName.DECODE, "d0", (1,))
    options = RankOptions(
        cluster="c",
        group=group,
        rank=RankId(0),
        model="fake:1",
        served_model_name="m",
        limits=Limits(),
        registry_url="",
        run_dir=run_dir,
        transfer_backend="shm",
    )
    edges, degraded = open_edges(options, PageMemory(LAYERS, PAGES, PAGE, shared=True), 0xA1)
    assert (edges.kind, degraded) == ("shm", "")
    names = ["kv0-d0-0-000000a1", "kv1-d0-0-000000a1"]
    assert {edges.open(group).endpoint.rpartition("/")[2] for group in ("p0", "p1")} == set(names)
    assert sorted(os.listdir(run_dir)) == names
    edges.close()
