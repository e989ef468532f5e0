"""Streams of the fake model, each held against its reference from the first character to its end."""

import contextlib
import enum
import http.client
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tandem.engine.fake import reference_tokens
from tandem.engine.model import FAKE_EOS

ANSWER_S = 120.0
"""Nothing that is heard for so long has hung."""
EVENT = b"data: "
DONE = b"[DONE]"


class End(enum.Enum):
    """How a stream ended, as its client sees it."""

    RIGHT = "right"  # the whole text of the reference
    WRONG = "wrong"  # another text
    ERROR = "error"  # an error that names its cause, after a beginning of the reference
    CUT = "cut"  # no end at all
    HUNG = "hung"  # silence
    LEFT = "left"  # its client went before the end


class Ended(NamedTuple):
    """`detail` is the code of an error, or what was wrong."""

    end: End
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.end.value} ({self.detail})" if self.detail else self.end.value


class Asked(msgspec.Struct, frozen=True):
    """A request whose answer is known. No cache knows of another salt's prompts."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    text: str
    salt: str = ""

    @property
    def body(self) -> bytes:
        """Of the request."""
        kept = {"model": self.model, "prompt": self.prompt, "max_tokens": self.max_tokens, "cache_salt": self.salt}
        return json.dumps({**kept, "temperature": 0, "ignore_eos": True, "stream": True}).encode()


Ask = Callable[[random.Random, int], Asked]
"""Draws a request of so many tokens."""


class FakeRequests:
    """An Ask of the fake model. A reference takes a while, so prompts come again, each time with another salt."""

    def __init__(self, layers: int, prompts: int, most_tokens: int) -> None:
        self._layers = layers
        self._most_tokens = most_tokens
        self._prompts = prompts
        self._known: dict[int, tuple[tuple[int, ...], list[int]]] = {}

    def __call__(self, rng: random.Random, max_tokens: int) -> Asked:
        """The prompt is of one chunk."""
        number, salt = rng.randrange(self._prompts), f"{rng.getrandbits(64):x}"
        if number not in self._known:
            self._known[number] = self._compute(random.Random(number))
        prompt, tokens = self._known[number]
        text = bytes(token for token in tokens[:max_tokens] if token < FAKE_EOS).decode()
        return Asked(f"fake:{self._layers}", prompt, max_tokens, text, salt)

    def _compute(self, rng: random.Random) -> tuple[tuple[int, ...], list[int]]:
        prompt = tuple(rng.randrange(32, 127) for _ in range(rng.choice((5, 16, 40, 200))))
        return prompt, reference_tokens(prompt, self._most_tokens, layers=self._layers)


class Stream:
    """One request, on a thread of its own from the beginning to the end of its answer.

    Its client leaves after so many characters; 0: without waiting for any.
    """

    def __init__(self, url: str, asked: Asked, leave_after: int | None = None) -> None:
        self.asked = asked
        self.leave_after = leave_after
        self.text = ""
        self.begun = threading.Event()
        """Its first text is here, or its end."""
        self.ended: Ended | None = None
        self._address = urlsplit(url).netloc
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> Ended:
        """How it ended; HUNG when it has not in time."""
        self._thread.join(timeout_s)
        return self.ended or Ended(End.HUNG, f"open after {len(self.text)} characters")

    def _run(self) -> None:
        try:
            self.ended = self._ask()
        except TimeoutError:
            self.ended = Ended(End.HUNG, f"silent for {ANSWER_S:g} s after {len(self.text)} characters")
        except (OSError, http.client.HTTPException) as error:
            self.ended = Ended(End.CUT, repr(error))
        finally:
            self.begun.set()

    def _ask(self) -> Ended:
        connection = http.client.HTTPConnection(self._address, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", self.asked.body, {"Content-Type": "application/json"})
            if self.leave_after == 0:
                return Ended(End.LEFT)
            answer = connection.getresponse()
            if answer.status != 200:
                return Ended(End.ERROR, str(json.loads(answer.read())["error"]["code"]))
            return self._read(answer)

    def _read(self, answer: http.client.HTTPResponse) -> Ended:
        finished = False
        for event in events(answer):
            if event is None:
                whole = finished and self.text == self.asked.text
                return Ended(End.RIGHT) if whole else self._wrong("its end")
            if "error" in event:
                return Ended(End.ERROR, str(event["error"]["code"]))
            for choice in event["choices"]:
                self.text += choice["text"]
                finished |= choice["finish_reason"] is not None
            if not self.asked.text.startswith(self.text):
                return self._wrong("its text")
            self.begun.set()
            if self.leave_after is not None and len(self.text) >= self.leave_after:
                return Ended(End.LEFT)
        return Ended(End.CUT, f"no end after {len(self.text)} characters")

    def _wrong(self, what: str) -> Ended:
        told = f"{what} after {len(self.text)} characters: ...{self.text[-20:]!r}"
        return Ended(End.WRONG, f"{told}, not ...{self.asked.text[: len(self.text)][-20:]!r}, to {self.asked}"[:400])


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """The data events of a stream; None for [DONE]."""
    while line := answer.readline():
        if line.startswith(EVENT):
            content = line.removeprefix(EVENT).strip()
            yield None if content == DONE else json.loads(content)


def all_begun(streams: Sequence[Stream]) -> None:
    """Wait until each has its first text, or has ended."""
    for stream in streams:
        stream.begun.wait(ANSWER_S)
