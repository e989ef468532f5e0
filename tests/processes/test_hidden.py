"""Hidden states between two real processes, through shared memory and in messages."""

import ctypes
import errno
import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tandem.core.config import Group, Limits, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.runtime.hidden import (
    MAX_QUEUED,
    NAME,
    SLOTS,
    HiddenLinkFull,
    PulledIn,
    RemoteOut,
    SharedOut,
    open_in,
    open_out,
)
from tandem.runtime.links import Sockets

SECRET = b"a cluster secret"
SLOT_BYTES = 512 * 576 * 4
DEADLINE_MS = 60_000
Link = tuple["zmq.Context[zmq.Socket[bytes]]", "Sockets[zmq.Socket[bytes]]", str, Path]


def pattern(number: int, length: int) -> bytes:
    seed = hashlib.sha256(number.to_bytes(4)).digest()
    return (seed * (length // 32 + 1))[:length]


def send_all(kind: str, address: str, directory: str, lengths: list[int]) -> None:
    """The previous rank, a process: sends payloads, says so, then waits until it may go."""
    context = zmq.Context()
    sockets = Sockets(context, SECRET)
    out = outgoing(kind, sockets.connect(zmq.PUSH, address, high_water=MAX_QUEUED), Path(directory))
    for number, length in enumerate(lengths):
        out.send(number.to_bytes(4), memoryview(pattern(number, length)))
    print("sent", flush=True)
    sys.stdin.readline()
    out.close()
    sockets.close()
    context.term()


def outgoing(kind: str, socket: "zmq.Socket[bytes]", directory: Path) -> SharedOut | RemoteOut:
    return SharedOut(socket, directory, SLOT_BYTES) if kind == "shared" else RemoteOut(socket)


@pytest.fixture(params=["shared", "remote"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def link(tmp_path: Path, kind: str) -> Iterator[Link]:
    tmp_path.chmod(0o700)
    context = zmq.Context()
    sockets = Sockets(context, SECRET)
    where = str(tmp_path) if kind == "shared" else "127.0.0.1"
    yield context, sockets, where, tmp_path
    sockets.close()
    context.term()


class Sender:
    """The previous rank, started."""

    def __init__(self, kind: str, address: str, directory: Path, lengths: list[int]) -> None:
        order = json.dumps([kind, address, str(directory), lengths])
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, __file__, order], stdin=pipe, stdout=pipe, text=True)

    def sent(self) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], DEADLINE_MS / 1000)[0]
        assert self.process.stdout.readline() == "sent\n"

    def stop(self) -> None:
        self.process.communicate("go\n", timeout=DEADLINE_MS / 1000)
        assert self.process.returncode == 0


@pytest.fixture
def start() -> Iterator[Callable[..., Sender]]:
    """Starts senders; none outlives its test."""
    started: list[Sender] = []

    def sender(*order: Any) -> Sender:
        started.append(Sender(*order))
        return started[-1]

    yield sender
    for one in started:
        one.process.kill()
        one.process.communicate()


def take(incoming: PulledIn) -> tuple[bytes, memoryview]:
    assert incoming.socket.poll(DEADLINE_MS), "no hidden states within the deadline"
    received = incoming.receive()
    assert received is not None, f"malformed: {incoming.malformed}"
    return received


def files(directory: Path) -> list[str]:
    return [entry for entry in os.listdir(directory) if entry.startswith(NAME)]


def test_a_run_directory_without_room_is_the_operators_mistake(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sockets, _, directory = link
    following = Member(
        Group(RoleName.PREFILL, "p0", (1, 1)), RankId(1), 1, 1, "here", "f", "m", "", f"ipc://{directory}/next", "",
        Limits(),
    )  # fmt: skip

    def full(file: int, first: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"--run-dir is .* no room there, No space left on device; give another"):
        open_out(sockets, "here", following, str(directory), SLOT_BYTES)
    assert files(directory) == []


def test_payloads_arrive_whole_and_in_order(kind: str, link: Link, start: Callable[..., Sender]) -> None:
    """More than there are slots; from one byte to the longest."""
    _, sockets, where, directory = link
    incoming, address = open_in(sockets, where, "hidden", str(directory))
    lengths = [1, SLOT_BYTES, 7, SLOT_BYTES - 1, 4096] * 4
    sender = start(kind, address, directory, lengths)
    for number, length in enumerate(lengths):
        header, payload = take(incoming)
        assert (header, bytes(payload)) == (number.to_bytes(4), pattern(number, length))
        del payload
        incoming.release()
    assert incoming.receive() is None
    sender.stop()
    assert incoming.malformed == 0
    assert files(directory) == []


def test_more_sends_than_slots_without_a_release(kind: str, link: Link, start: Callable[..., Sender]) -> None:
    """The sender does not wait for the receiver; what was received keeps its bytes until it is released."""
    _, sockets, where, directory = link
    incoming, address = open_in(sockets, where, "hidden", str(directory))
    lengths = [10_000 + number for number in range(SLOTS * 3)]
    sender = start(kind, address, directory, lengths)
    sender.sent()
    held = [take(incoming)[1] for _ in lengths]
    for number, (payload, length) in enumerate(zip(held, lengths, strict=True)):
        assert bytes(payload) == pattern(number, length)
        incoming.release()
    sender.stop()


def test_a_receiver_that_starts_late_misses_nothing(kind: str, link: Link, start: Callable[..., Sender]) -> None:
    _, sockets, where, directory = link
    first, address = open_in(sockets, where, "hidden", str(directory))
    first.close()
    lengths = [100, 200, 300]
    sender = start(kind, address, directory, lengths)
    sender.sent()
    late, _ = open_in(sockets, where, "hidden", str(directory)) if kind == "shared" else (rebound(sockets, address), "")
    for number, length in enumerate(lengths):
        assert bytes(take(late)[1]) == pattern(number, length)
        late.release()
    sender.stop()
    assert files(directory) == []


def rebound(sockets: Sockets["zmq.Socket[bytes]"], address: str) -> PulledIn:
    """A receiver on a tcp address that the sender knows already."""
    socket, other = sockets.bind(zmq.PULL, "127.0.0.1", "")
    socket.unbind(other)
    socket.bind(address)
    return PulledIn(socket, None)


def test_slots_are_used_again_once_released(link: Link, kind: str) -> None:
    if kind == "remote":
        return
    _, sockets, where, directory = link
    incoming, address = open_in(sockets, where, "hidden", str(directory))
    out = SharedOut(sockets.connect(zmq.PUSH, address), directory, SLOT_BYTES)
    addresses = set()
    for number in range(SLOTS * 4):
        out.send(b"", memoryview(pattern(number, 64)))
        _, payload = take(incoming)
        assert bytes(payload) == pattern(number, 64)
        addresses.add(memory_address(payload))
        del payload
        incoming.release()
    assert len(addresses) == SLOTS, "every payload went through a slot"
    out.close()


def memory_address(payload: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(payload))


def test_a_full_link_raises_and_never_blocks(kind: str, link: Link) -> None:
    _, sockets, where, directory = link
    first, address = open_in(sockets, where, "hidden", str(directory))
    first.close()
    out = outgoing(kind, sockets.connect(zmq.PUSH, address, high_water=MAX_QUEUED), directory)
    for _ in range(MAX_QUEUED):
        out.send(b"", memoryview(b"x"))
    with pytest.raises(HiddenLinkFull):
        out.send(b"", memoryview(b"x"))
    out.close()
    assert files(directory) == []


def test_a_payload_longer_than_a_slot_is_refused(link: Link, kind: str) -> None:
    if kind == "remote":
        return
    _, sockets, where, directory = link
    _, address = open_in(sockets, where, "hidden", str(directory))
    out = SharedOut(sockets.connect(zmq.PUSH, address), directory, 4096)
    with pytest.raises(ValueError, match="4097 bytes"):
        out.send(b"", memoryview(bytes(4097)))
    out.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b"alone"],
        [b"h", b"../hidden-0123", bytes(16)],
        [b"h", b"hidden-../../etc/passwd", bytes(16)],
        [b"h", b"hidden-\xff", bytes(16)],
        [b"h", b"hidden-0123", bytes(16)],
        [b"h", b"hidden-0123", bytes(15)],
        [b"h", b"p", b"q", b"r"],
    ],
)
def test_a_malformed_doorbell_is_counted(link: Link, kind: str, frames: list[bytes]) -> None:
    _, sockets, where, directory = link
    incoming, address = open_in(sockets, where, "hidden", str(directory))
    push = sockets.connect(zmq.PUSH, address)
    push.send_multipart(frames)
    push.send_multipart([b"header", b"payload"])
    assert incoming.socket.poll(DEADLINE_MS)
    received = None
    while received is None:
        received = incoming.receive()
    assert (received[0], bytes(received[1])) == (b"header", b"payload")
    assert incoming.malformed == 1


def test_a_doorbell_past_the_end_of_the_file_is_malformed(link: Link, kind: str) -> None:
    _, sockets, where, directory = link
    incoming, address = open_in(sockets, where, "hidden", str(directory))
    (directory / f"{NAME}ab").write_bytes(bytes(100))
    push = sockets.connect(zmq.PUSH, address)
    push.send_multipart([b"h", f"{NAME}ab".encode(), (90).to_bytes(8, "little") + (11).to_bytes(8, "little")])
    push.send_multipart([b"header", b""])
    assert take(incoming)[0] == b"header"
    assert incoming.malformed == 1


def test_it_leaves_nothing_behind_when_the_sender_is_killed(
    link: Link, start: Callable[..., Sender], kind: str
) -> None:
    _, sockets, where, directory = link
    incoming, address = open_in(sockets, where, "hidden", str(directory))
    sender = start(kind, address, directory, [5000])
    _, payload = take(incoming)
    sender.sent()
    sender.process.kill()
    sender.process.communicate(timeout=DEADLINE_MS / 1000)
    assert bytes(payload) == pattern(0, 5000)
    incoming.release()
    assert files(directory) == []


if __name__ == "__main__":
    send_all(*json.loads(sys.argv[1]))
