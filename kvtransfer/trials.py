"""Handshakes that a prefill rank has begun: reaching a decode rank and writing the known answer takes a thread."""

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple

from kvtransfer.edges import Edges
from kvtransfer.handshake import ANSWER_BYTES, CONNECT_DEADLINE_S, known_answer
from kvtransfer.tail import Tail
from tandem.core.errors import ConfigError
from tandem.core.events import Written
from tandem.core.messages import Hello


class Trial(NamedTuple):
    """How it ended: `failure` is None if the answer has been written."""

    hello: Hello
    endpoint: str  # ours, for the peer's group
    failure: str | None


class Trials:
    """Each has a thread of its own: a silent peer holds up nobody else. `wake` ends the tick loop's sleep."""

    def __init__(self, me: Hello, edges: Edges, tail: Tail, wake: Callable[[], None], timer_scale: float = 1.0) -> None:
        self._me = me
        self._edges = edges
        self._tail = tail
        self._wake = wake
        self._deadline_s = CONNECT_DEADLINE_S * timer_scale
        self._ended: SimpleQueue[Trial] = SimpleQueue()

    def begin(self, hello: Hello, slot: int) -> None:
        """Try a decode rank. `slot` of our tail is its own: the answer is written from there."""
        name = f"try {hello.group}/{hello.rank}"
        threading.Thread(target=self._run, args=(hello, slot), name=name, daemon=True).start()

    def take(self) -> Iterator[Trial]:
        """Those that have ended."""
        while True:
            try:
                yield self._ended.get_nowait()
            except Empty:
                return

    def _run(self, hello: Hello, slot: int) -> None:
        trial = Trial(hello, "", "its transport failed")  # what is true if the transport raises anything else
        try:
            trial = Trial(hello, self._write(hello, slot), None)
        except (OSError, ConfigError) as error:
            who = f"{self._me.group}/{self._me.rank} cannot write to {hello.group}/{hello.rank}"
            trial = Trial(hello, "", f"{who}: {error}")
        finally:
            self._ended.put(trial)
            self._wake()

    def _write(self, hello: Hello, slot: int) -> str:
        """Returns our endpoint. Raises OSError or ConfigError."""
        endpoint = self._edges.connect(hello, self._deadline_s).endpoint
        self._tail.write(slot, known_answer(self._me, hello))
        with self._edges.using(hello.group) as transport:
            if transport is None:
                raise ConnectionError("the way there is being fenced")
            answer = [(self._tail.address(slot), hello.probe, ANSWER_BYTES)]
            result = transport.write(hello, answer, self._deadline_s)
        if result is not Written.OK:
            raise ConnectionError(f"the write of the known answer ended {result.value}")
        return endpoint
