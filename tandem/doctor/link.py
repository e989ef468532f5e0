"""The conversation of two doctors: one asks, the other answers, over a socket as all of Tandem's are."""

import contextlib
import importlib.metadata
import socket
import time
from collections.abc import Iterator
from typing import TypeVar

import zmq

from tandem.core.messages import PROTOCOL
from tandem.doctor.words import Declined, Leave, Opening, ToCaller, ToListener
from tandem.runtime.links import Inbox, RouterInbox, Sockets, encode, post

Socket = zmq.Socket[bytes]
T = TypeVar("T")

NAME = "doctor"
HANDSHAKE_S = 5.0
"""From a connection to the proof that both have the secret."""
ANSWER_S = 10.0
LEAVE_S = 5.0
"""For the caller to read the last answer."""
LINGER_MS = 1000
"""For the last word to get out."""
GONE_S = 0.5
"""How often to look whether the other end is still there."""
RETRY_S = 0.1
LOOK_S = 0.01


class Lost(Exception):
    """The conversation cannot begin or go on; the text is one sentence that says why and what to do."""


class Caller:
    """Asks. `who` names the other end in what goes wrong."""

    def __init__(self, sockets: Sockets[Socket], address: str, who: str) -> None:
        self._socket = sockets.connect(zmq.DEALER, address)
        self._inbox: Inbox[ToCaller] = Inbox(self._socket, ToCaller)
        self._who = who

    def open(self, handshake_s: float = HANDSHAKE_S, protocol: int = PROTOCOL) -> None:
        """Prove the secret, and compare versions. Raises Lost."""
        ours, until = opening(protocol), time.monotonic() + handshake_s
        while not post(self._socket, encode(ours)):  # it holds nothing back for a peer that has not shaken hands
            if time.monotonic() > until:
                raise Lost(
                    f"{self._who} accepts connections but no handshake comes about in {handshake_s:g} s: give both "
                    "ends the same --cluster-secret-file, and make sure that `tandem doctor --listen` is what listens"
                )
            time.sleep(LOOK_S)
        theirs = self._receive(Opening, "Opening", ANSWER_S)
        compare_versions(ours, theirs, self._who)

    def ask(self, word: ToListener, kind: type[T], deadline_s: float = ANSWER_S) -> T:
        """The answer. Raises Lost when there is none in time, or another."""
        self.say(word)
        return self._receive(kind, type(word).__name__, deadline_s)

    def say(self, word: ToListener) -> None:
        """Without an answer. Who does not take it is noticed when the next one fails to come."""
        post(self._socket, encode(word))

    def leave(self, detail: str = "") -> None:
        """The caller's last word; says why if it comes too early."""
        self.say(Leave(detail))

    def close(self) -> None:
        """After the last word has got out, if that is soon."""
        self._socket.close(LINGER_MS)

    def _receive(self, kind: type[T], asked: str, deadline_s: float) -> T:
        until = time.monotonic() + deadline_s
        while True:
            gone = not self._socket.poll(0, zmq.POLLOUT)  # it takes nothing for a peer that is not there
            answer = self._inbox.receive()
            if answer is not None:
                break
            if gone:
                raise Lost(f"{self._who} went away at {asked}: see what it says there, and run both again")
            left = until - time.monotonic()
            if left <= 0:
                raise Lost(f"{self._who} gave no answer to {asked} in {deadline_s:g} s: see what it says there")
            self._socket.poll(round(min(left, GONE_S) * 1000))
        if isinstance(answer, Declined):
            raise Lost(f"{self._who} declines: {answer.detail}")
        if not isinstance(answer, kind):
            raise Lost(f"{self._who} answered {type(answer).__name__} to {asked}: install the same Tandem on both ends")
        return answer


class Listener:
    """Hears one caller; others are declined meanwhile. It is at a port of `where`, or in that directory."""

    def __init__(self, sockets: Sockets[Socket], where: str, port: int = 0) -> None:
        self._socket, _ = sockets.bind(zmq.ROUTER, where, NAME, port=port)
        self._inbox: RouterInbox[ToListener] = RouterInbox(self._socket, ToListener)
        self._guest = b""

    def open(self, wait_s: float, protocol: int = PROTOCOL) -> None:
        """Wait for a caller, and compare versions. Raises Lost."""
        nobody = (
            f"nobody with the same cluster secret called in {wait_s:g} s: run `tandem doctor --connect` with the same "
            "--cluster-secret-file on the other host, and open the port between the hosts"
        )
        until = time.monotonic() + wait_s
        while True:
            self._guest, word = self._receive(until, nobody)
            if isinstance(word, Opening):
                break
        ours = opening(protocol)
        self.answer(ours)
        compare_versions(ours, word, "the caller")

    def hear(self, deadline_s: float) -> ToListener:
        """The next order. Raises Lost when the caller is silent or leaves."""
        silent = f"the caller said nothing for {deadline_s:g} s: see what it says there, and run both again"
        return self._hear(time.monotonic() + deadline_s, silent)

    def answer(self, word: ToCaller) -> None:
        """To the caller that was heard last."""
        post(self._socket, self._guest, encode(word))

    def close(self) -> None:
        """The caller leaves first: its socket, a DEALER with ZMQ_IMMEDIATE, may drop an answer that we close behind."""
        until = time.monotonic() + LEAVE_S
        with contextlib.suppress(Lost):
            while self._guest:
                self._hear(until, "")
        self._socket.close(LINGER_MS)

    def _hear(self, until: float, silent: str) -> ToListener:
        """The caller's next word. Raises Lost at its last one."""
        while True:
            guest, word = self._receive(until, silent)
            if guest != self._guest:
                post(self._socket, guest, encode(Declined("it talks to another caller: try again later")))
            elif isinstance(word, Leave):
                self._guest = b""
                raise Lost(f"the caller left: {word.detail}")
            else:
                return word

    def _receive(self, until: float, missed: str) -> tuple[bytes, ToListener]:
        while (received := self._inbox.receive()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise Lost(missed)
            self._socket.poll(round(left * 1000))
        return received


@contextlib.contextmanager
def opened(secret: bytes) -> Iterator[Sockets[Socket]]:
    """Sockets of a context of their own; the last words have left, or a second has passed, when it ends."""
    with zmq.Context[Socket]() as context, contextlib.closing(Sockets(context, secret)) as sockets:
        yield sockets


def opening(protocol: int) -> Opening:
    """What this installation says first."""
    return Opening(protocol, importlib.metadata.version("tandem"))


def compare_versions(ours: Opening, theirs: Opening, who: str) -> None:
    """Raises Lost when they would not understand each other."""
    if theirs.protocol != ours.protocol:
        raise Lost(
            f"{who} has Tandem {theirs.version} with protocol {theirs.protocol}, this host {ours.version} with "
            f"{ours.protocol}: install the same version on both"
        )


def reach(host: str, port: int, wait_s: float) -> tuple[str, str]:
    """Wait until somebody listens; the addresses of this and the other end. Raises Lost."""
    until = time.monotonic() + wait_s
    while True:
        try:
            with socket.create_connection((host, port), max(RETRY_S, until - time.monotonic())) as connection:
                return connection.getsockname()[0], connection.getpeername()[0]
        except (socket.gaierror, UnicodeError) as error:  # the latter of a name that nobody can be asked for
            raise Lost(f"{host} is no host that can be found: {error}") from None
        except OSError as error:
            if time.monotonic() > until:
                raise Lost(
                    f"nobody answers at {host} port {port} in {wait_s:g} s ({error}): start `tandem doctor --listen "
                    f"{host}:{port}` there, and open the port between the hosts"
                ) from None
            time.sleep(RETRY_S)
