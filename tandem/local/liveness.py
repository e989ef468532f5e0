"""Asks every process of a local cluster for a sign of life, without waiting for any of the answers."""

import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass

from tandem.local.loop import Loop, Timer

LOOK_S = 1.0
HUNG_LOOKS = 10
"""Looks in a row without an answer, after which a process counts as hung."""
LOADING_LOOKS = 180
"""The same while nobody knows where the process would answer: it has not registered."""
ANSWER_BYTES = 4096


@dataclass(frozen=True)
class Question:
    """What a process is asked, where, and what the first line of a good answer has; then it hangs up."""

    address: tuple[str, int] | str
    """Host and port, or the path of a unix socket."""
    text: bytes
    good: bytes

    @property
    def family(self) -> socket.AddressFamily:
        """Of the socket that reaches it."""
        if isinstance(self.address, str):
            return socket.AF_UNIX
        return socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET


def http_question(host_and_port: str) -> Question:
    """GET /livez of a rank or router."""
    host, _, port = host_and_port.rpartition(":")
    return Question((host.strip("[]"), int(port)), b"GET /livez HTTP/1.0\r\n\r\n", b" 200 ")


def registry_question(path: str) -> Question:
    """PING of a registry at a unix socket."""
    return Question(path, b"PING\r\nQUIT\r\n", b"+PONG")


class Probe:
    """One question under way. `told` is called once, from the loop: whether the answer was good."""

    def __init__(self, loop: Loop, question: Question, told: Callable[[bool], None]) -> None:
        self._loop = loop
        self._question = question
        self._told = told
        self._answer = b""
        self._socket = socket.socket(question.family)
        self._socket.setblocking(False)
        self._socket.connect_ex(question.address)  # what went wrong shows when it is written to
        loop.watch(self._socket.fileno(), self._ask, selectors.EVENT_WRITE)

    def close(self) -> None:
        """Nobody is told any more."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()

    def _ask(self) -> None:
        try:
            self._socket.send(self._question.text)
        except OSError:
            self._end()
            return
        self._loop.forget(self._socket.fileno())
        self._loop.watch(self._socket.fileno(), self._hear)

    def _hear(self) -> None:
        """To the end, although its first bytes would do: who is cut off while answering complains."""
        try:
            data = self._socket.recv(ANSWER_BYTES)
        except OSError:
            data = b""
        self._answer = (self._answer + data)[:ANSWER_BYTES]
        if not data:
            self._end()

    def _end(self) -> None:
        self.close()
        self._told(self._question.good in self._answer.partition(b"\r\n")[0])


@dataclass(eq=False)
class Watched:
    """One process."""

    question: Question | None  # None: nobody knows yet where it answers
    probe: Probe | None = None
    misses: int = 0  # looks since its last good answer

    def told(self, good: bool) -> None:
        """The probe's answer."""
        self.probe = None
        if good:
            self.misses = 0


class Liveness:
    """Watches processes by name. `on_hung` hears, once, who has not answered for so many seconds.

    It counts looks, not time: when this process has slept itself, nobody is accused of silence.
    """

    def __init__(self, loop: Loop, on_hung: Callable[[str, float], None], timer_scale: float = 1.0) -> None:
        self._loop = loop
        self._on_hung = on_hung
        self._look_s = LOOK_S * timer_scale
        self._watched: dict[str, Watched] = {}
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look from now on."""
        self._timer = self._loop.later(self._look_s, self._look)

    def stop(self) -> None:
        """Look no longer."""
        if self._timer is not None:
            self._loop.cancel(self._timer)
            self._timer = None
        for name in list(self._watched):
            self.forget(name)

    def watch(self, name: str) -> None:
        """This process has been started; where it answers is not known yet."""
        self._watched[name] = Watched(None)

    def answers_at(self, name: str, question: Question) -> None:
        """Where a watched process answers."""
        watched = self._watched.get(name)
        if watched is not None and watched.question != question:
            self.forget(name)
            self._watched[name] = Watched(question)

    def forget(self, name: str) -> None:
        """Who has ended, or may be silent from now on."""
        watched = self._watched.pop(name, None)
        if watched is not None and watched.probe is not None:
            watched.probe.close()

    def _look(self) -> None:
        self._timer = self._loop.later(self._look_s, self._look)
        for name, watched in list(self._watched.items()):
            watched.misses += 1
            most = HUNG_LOOKS if watched.question is not None else LOADING_LOOKS
            if watched.misses >= most:
                self.forget(name)
                self._on_hung(name, most * self._look_s)
            elif watched.question is not None and watched.probe is None:
                watched.probe = Probe(self._loop, watched.question, watched.told)
