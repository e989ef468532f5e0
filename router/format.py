"""Answers as bytes: a whole JSON body, or the events of a stream."""

import time
from typing import Any, Protocol

import msgspec

from router.asked import Asked
from router.errors import ApiError
from router.ports import Model
from tandem.core.ids import RequestId

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


class Dialect(Protocol):
    """What differs between chat and completions: how a body is read, and what a choice looks like."""

    prefix: str
    whole_object: str
    chunk_object: str

    def read(self, payload: bytes, model: Model) -> Asked: ...

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]: ...

    def opening(self) -> dict[str, Any] | None:
        """The choice before the first text, if this dialect has one."""
        ...

    def piece(self, text: str) -> dict[str, Any]: ...

    def closing(self, finish_reason: str) -> dict[str, Any]: ...


class Format:
    """One request's answer in its dialect. `usage` counts a generated end-of-sequence token, as others here do."""

    def __init__(self, dialect: Dialect, rid: RequestId, model: str, ask: Asked) -> None:
        self._dialect = dialect
        self._ask = ask
        self._head = {"id": f"{dialect.prefix}{rid:016x}", "created": int(time.time()), "model": model}
        self._opened = False

    def whole(self, text: str, finish_reason: str, count: int) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [self._dialect.whole(text, finish_reason)]
        whole = {**self._head, "object": self._dialect.whole_object, "choices": choices, "usage": self._usage(count)}
        return msgspec.json.encode(whole)

    def pieces(self, texts: list[str]) -> bytes:
        """One event for each text; the role stands before the first."""
        return b"".join([self._opening(), *(self._event([self._dialect.piece(text)]) for text in texts)])

    def closing(self, finish_reason: str, count: int) -> bytes:
        """The last events of a stream that went well."""
        events = [self._opening(), self._event([self._dialect.closing(finish_reason)])]
        if self._ask.include_usage:
            events.append(self._event([], self._usage(count)))
        return b"".join([*events, DONE])

    def failing(self, error: ApiError) -> bytes:
        """The last events of a stream that did not."""
        return b"data: " + error.body() + b"\n\n" + DONE

    def _opening(self) -> bytes:
        choice = None if self._opened else self._dialect.opening()
        self._opened = True
        return self._event([choice]) if choice is not None else b""

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        chunk: dict[str, Any] = {**self._head, "object": self._dialect.chunk_object, "choices": choices}
        if self._ask.include_usage:
            chunk["usage"] = usage
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _usage(self, count: int) -> dict[str, int]:
        prompt = len(self._ask.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
