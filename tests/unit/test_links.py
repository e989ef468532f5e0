"""Sockets admit only the cluster's own; whatever bytes come, an inbox yields messages or counts."""

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from tandem.core import messages
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.messages import Cancel, Grant, Numbered, Quiet, Refused, ToDecode, ToGroup, ToLeader, ToPrefill
from tandem.core.requests import Reason
from tandem.runtime import links
from tandem.runtime.links import Decoder, Inbox, Malformed, RouterInbox, Sockets, curve_keys, encode, post, read_secret

SECRET = b"a cluster secret"
QUIET = Numbered(1, 2, Quiet(Room(RequestId(1), 2)))
UNIONS = [ToGroup, ToPrefill, ToDecode, ToLeader, messages.FromLeader, messages.OnRing, messages.ToRouter]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context()
    yield made
    made.term()


@pytest.fixture
def sockets(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Sockets[zmq.Socket[bytes]]]:
    made = Sockets(context, SECRET)
    yield made
    made.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path)


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_message_passes(sockets: Sockets[zmq.Socket[bytes]], run_dir: str, kind: str) -> None:
    pull, address = sockets.bind(zmq.PULL, run_dir if kind == "ipc" else "127.0.0.1", "ring")
    assert address.startswith(kind)
    push = sockets.connect(zmq.PUSH, address)
    assert post(push, encode(QUIET))
    inbox: Inbox[ToDecode] = Inbox(pull, ToDecode)
    assert eventually(inbox.receive) == QUIET
    assert inbox.receive() is None


def test_router_and_dealer_talk_both_ways(sockets: Sockets[zmq.Socket[bytes]], run_dir: str) -> None:
    router, address = sockets.bind(zmq.ROUTER, run_dir, "peers")
    dealer = sockets.connect(zmq.DEALER, address, b"d0/1")
    grant = Numbered(1, 1, Grant("d0", Room(RequestId(1), 0), RankId(1), 0, ()))
    at_router: RouterInbox[ToPrefill] = RouterInbox(router, ToPrefill)
    at_dealer: Inbox[ToDecode] = Inbox(dealer, ToDecode)
    eventually(lambda: post(dealer, encode(grant)))
    assert eventually(at_router.receive) == (b"d0/1", grant)
    assert post(router, b"d0/1", encode(QUIET))
    assert eventually(at_dealer.receive) == QUIET


def test_a_router_says_when_a_peer_is_not_there(sockets: Sockets[zmq.Socket[bytes]], run_dir: str) -> None:
    router, _ = sockets.bind(zmq.ROUTER, run_dir, "peers")
    assert not post(router, b"nobody", b"")


def test_a_dealer_queues_nothing_for_an_absent_peer(sockets: Sockets[zmq.Socket[bytes]], run_dir: str) -> None:
    dealer = sockets.connect(zmq.DEALER, f"ipc://{run_dir}/nobody", b"me")
    assert not post(dealer, b"hello")


TURNED_AWAY = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


def test_strangers_stay_out(sockets: Sockets[zmq.Socket[bytes]]) -> None:
    """Strangers: no keys at all; a made-up pair and the server's public key; the keys of another secret."""
    pull, address = sockets.bind(zmq.PULL, "127.0.0.1", "")
    ours, other = curve_keys(SECRET)[0], curve_keys(b"another secret")
    with zmq.Context() as context:
        for keys in [None, (*zmq.curve_keypair(), ours), (*other, ours), (*other, other[0])]:
            push = context.socket(zmq.PUSH)
            if keys is not None:
                push.curve_publickey, push.curve_secretkey, push.curve_serverkey = keys
            monitor = push.get_monitor_socket(TURNED_AWAY)
            push.connect(address)
            push.send(b"intruder", zmq.NOBLOCK)
            assert monitor.poll(10_000), f"nobody turned away {keys}"
            push.disable_monitor()
            monitor.close(0)
            push.close(0)
    post(sockets.connect(zmq.PUSH, address), b"friend")
    assert eventually(lambda: pull.recv() if pull.poll(0) else None) == b"friend"
    assert not pull.poll(0)


def test_a_port_can_be_named(sockets: Sockets[zmq.Socket[bytes]]) -> None:
    first, address = sockets.bind(zmq.PULL, "127.0.0.1", "")
    port = int(address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot bind tcp://127.0.0.1:{port}: Address already in use"):
        sockets.bind(zmq.PULL, "127.0.0.1", "", port=port)
    first.unbind(address)
    assert eventually(lambda: bound_at(sockets, port)) == address


def bound_at(sockets: Sockets[zmq.Socket[bytes]], port: int) -> str:
    """Its address, or nothing while the port is still taken."""
    try:
        return sockets.bind(zmq.PULL, "127.0.0.1", "", port=port)[1]
    except ConfigError:
        return ""


def test_tcp_without_a_secret_is_refused(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    bare = Sockets(context, b"")
    with pytest.raises(ConfigError, match="cluster-secret-file"):
        bare.bind(zmq.PULL, "127.0.0.1", "")
    with pytest.raises(ConfigError, match="cluster-secret-file"):
        bare.connect(zmq.PUSH, "tcp://127.0.0.1:1")


@pytest.mark.parametrize("where", ["0.0.0.0", "::", "*", "", "203.0.113.9", "no such host"])
def test_a_useless_bind_address_is_named(sockets: Sockets[zmq.Socket[bytes]], where: str) -> None:
    with pytest.raises(ConfigError, match="bind"):
        sockets.bind(zmq.PULL, where, "")


def test_a_directory_that_others_can_enter_is_refused(sockets: Sockets[zmq.Socket[bytes]], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="0755"):
        sockets.bind(zmq.PULL, str(tmp_path), "ring")
    with pytest.raises(ConfigError, match="create it"):
        sockets.bind(zmq.PULL, str(tmp_path / "none"), "ring")


@pytest.mark.parametrize(
    ("mode", "owner", "ours", "fine"),
    [
        (0o600, 7, 7, True),
        (0o440, 7, 7, False),
        (0o440, 0, 0, False),
        (0o440, 0, 7, True),  # as Kubernetes mounts a Secret for a group of the pod
        (0o444, 0, 7, False),
        (0o460, 0, 7, False),
    ],
)
def test_a_secret_is_its_owners_alone_unless_root_lends_it_to_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, ours: int, fine: bool
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    found = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 0, len(SECRET), 0, 0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: found)
        patch.setattr(os, "geteuid", lambda: ours)
        if fine:
            assert read_secret(str(path)) == SECRET
        else:
            with pytest.raises(ConfigError, match="can be read by others"):
                read_secret(str(path))


def test_a_path_too_long_for_a_socket_is_named(sockets: Sockets[zmq.Socket[bytes]], run_dir: str) -> None:
    with pytest.raises(ConfigError, match="the system allows 107"):
        sockets.bind(zmq.PULL, run_dir, "x" * 100)


def test_an_oversized_message_ends_the_connection(
    sockets: Sockets[zmq.Socket[bytes]], run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_MESSAGE_BYTES", 1000)  # the handshake has to fit, too
    pull, address = sockets.bind(zmq.PULL, run_dir, "ring")
    push = sockets.connect(zmq.PUSH, address)
    post(push, b"x" * 1001)
    assert eventually(lambda: pull.recv() if post(push, b"later") and pull.poll(0) else None) == b"later"


def test_it_serves_asyncio_too(run_dir: str) -> None:
    async def echo() -> bytes:
        with zmq.asyncio.Context() as context:
            sockets = Sockets(context, SECRET)
            pull, address = sockets.bind(zmq.PULL, "127.0.0.1", "")
            push = sockets.connect(zmq.PUSH, address)
            await push.send(b"hello")
            heard: bytes = await pull.recv()
            sockets.close()
            return heard

    assert asyncio.run(echo()) == b"hello"


def test_closing_twice_is_fine_and_the_context_serves_again(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    for _ in range(2):
        sockets = Sockets(context, SECRET)
        sockets.bind(zmq.PULL, "127.0.0.1", "")
        sockets.close()
        sockets.close()
    assert "zap" not in [thread.name for thread in threading.enumerate()]


# decoders

VALID = [QUIET, Cancel(QUIET.message.room, Reason.STOP), Refused("p0", RankId(0), "no")]


def mutated(data: bytes, flips: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(data)
    for place, value in flips:
        changed[place % len(changed)] = value
    return bytes(changed[: len(changed) - cut % len(changed)])


flips = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)
garbage = st.binary(max_size=200) | st.builds(
    mutated, st.sampled_from([encode(message) for message in VALID]), flips, st.integers(0, 20)
)


@given(garbage, st.sampled_from(UNIONS))
def test_a_decoder_raises_nothing_but_malformed(data: bytes, union: Any) -> None:
    try:
        message = Decoder[msgspec.Struct](union)(data)
    except Malformed:
        return
    assert isinstance(message, msgspec.Struct)


@pytest.mark.parametrize("union", UNIONS)
def test_deep_nesting_is_malformed(union: Any) -> None:
    for message in VALID:
        head = encode(message)
        nested = bytes([head[0] + 1]) + head[1:] + b"\x91" * 100_000 + b"\xc0"
        with pytest.raises(Malformed):
            Decoder[msgspec.Struct](union)(nested)


class Replay:
    """A socket that has received these messages."""

    def __init__(self, received: list[list[bytes]]) -> None:
        self.received = received

    def recv_multipart(self, flags: int) -> list[bytes]:
        if not self.received:
            raise zmq.Again
        return self.received.pop(0)


@given(st.lists(st.lists(garbage, max_size=3) | st.just([encode(QUIET)])))
def test_an_inbox_counts_what_it_skips(received: list[list[bytes]]) -> None:
    total = len(received)
    inbox: Inbox[ToDecode] = Inbox(Replay(received), ToDecode)  # type: ignore[arg-type]
    heard = 0
    while inbox.receive() is not None:
        heard += 1
    assert heard + inbox.malformed == total


@given(st.lists(st.lists(garbage, max_size=3) | st.just([b"peer", encode(QUIET)])))
def test_a_router_inbox_counts_what_it_skips(received: list[list[bytes]]) -> None:
    total = len(received)
    inbox: RouterInbox[ToDecode] = RouterInbox(Replay(received), ToDecode)  # type: ignore[arg-type]
    heard = 0
    while inbox.receive() is not None:
        heard += 1
    assert heard + inbox.malformed == total
