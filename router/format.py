"""Answers as bytes: a whole JSON body, or the events of a stream."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from router.asked import Asked
from router.choices import Choices
from router.errors import ApiError
from router.exchange import Exchange
from router.logprobs import Scored
from router.ports import Model, Tokenizer
from router.stream import Finished
from tandem.core.ids import RequestId

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

MARK = "\ue000"
"""Stands where the text of an event goes."""


class Dialect(Protocol):
    """What differs between chat and completions: how a body is read, and what a choice looks like."""

    prefix: str
    whole_object: str
    chunk_object: str

    def read(self, payload: bytes, model: Model) -> Asked: ...

    def whole(self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str) -> dict[str, Any]: ...

    def opening(self, index: int, echo: str) -> dict[str, Any] | None:
        """The choice before the first text, if there is something to say."""
        ...

    def piece(self, index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]: ...

    def closing(self, index: int, logprobs: dict[str, Any] | None, finish_reason: str) -> dict[str, Any]: ...

    def logprobs(self, scored: Sequence[Scored], tokenizer: Tokenizer) -> dict[str, Any]:
        """Of the tokens of one piece."""
        ...


class Format:
    """One request's answer in its dialect. `usage` counts a generated end-of-sequence token, as others here do.

    Events of one choice differ in nothing but their text, so all around it is encoded once.
    """

    def __init__(self, dialect: Dialect, rid: RequestId, model: Model, ask: Asked) -> None:
        self._dialect = dialect
        self._ask = ask
        self._tokenizer = model.tokenizer
        self._head = {"id": f"{dialect.prefix}{rid:016x}", "created": int(time.time()), "model": model.name}
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """What stands before and behind the text in events of the choices that have begun."""

    def whole(self, choices: Choices) -> bytes:
        """The body of an answer that is not streamed, once all choices are finished."""
        told = [self._whole(index, exchange) for index, exchange in enumerate(choices.exchanges)]
        whole = {**self._head, "object": self._dialect.whole_object, "choices": told, "usage": self._usage(choices)}
        return msgspec.json.encode(whole)

    def news(self, index: int, exchange: Exchange) -> bytes:
        """Events for what is new of one choice: one for each text, and one for its end."""
        events = [] if index in self._around else [self._opening(index)]
        scores = exchange.stream.scores
        if scores is None:
            before, behind = self._around[index]
            events += [before + msgspec.json.encode(text) + behind for text in exchange.take()]
        else:
            for text in exchange.take():
                logprobs = self._logprobs(scores.take(len(text)))
                events.append(self._event([self._dialect.piece(index, text, logprobs)]))
        if isinstance(end := exchange.stream.end, Finished):
            logprobs = self._logprobs(_rest(exchange))
            events.append(self._event([self._dialect.closing(index, logprobs, end.reason)]))
        return b"".join(events)

    def ending(self, choices: Choices) -> bytes:
        """The last events of a stream that went well."""
        return (self._event([], self._usage(choices)) if self._ask.include_usage else b"") + DONE

    def failing(self, error: ApiError) -> bytes:
        """The last events of a stream that did not."""
        return b"data: " + error.body() + b"\n\n" + DONE

    def _whole(self, index: int, exchange: Exchange) -> dict[str, Any]:
        assert isinstance(exchange.end, Finished)
        text = "".join(exchange.take())
        scores = exchange.stream.scores
        scored = [] if scores is None else [*scores.take(len(text)), *_rest(exchange)]
        logprobs = None if scores is None else self._dialect.logprobs(scored, self._tokenizer)
        return self._dialect.whole(index, self._ask.echo(index) + text, logprobs, exchange.end.reason)

    def _opening(self, index: int) -> bytes:
        event = self._event([self._dialect.piece(index, MARK, None)])
        before, _, behind = event.rpartition(msgspec.json.encode(MARK))
        self._around[index] = (before, behind)
        choice = self._dialect.opening(index, self._ask.echo(index))
        return b"" if choice is None else self._event([choice])

    def _logprobs(self, scored: Sequence[Scored]) -> dict[str, Any] | None:
        return self._dialect.logprobs(scored, self._tokenizer) if scored else None

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {**self._head, "object": self._dialect.chunk_object, "choices": choices}
        if self._ask.include_usage:
            chunk["usage"] = usage
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _usage(self, choices: Choices) -> dict[str, Any]:
        """A prompt counts once, however many answers it has; what was cached of it is what the first one found."""
        prompt = sum(map(len, self._ask.prompts))
        cached = sum(exchange.stream.cached for exchange in choices.exchanges[:: self._ask.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": choices.count,
            "total_tokens": prompt + choices.count,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _rest(exchange: Exchange) -> list[Scored]:
    """Tokens that come after all text of an answer that ended by itself."""
    end, scores = exchange.end, exchange.stream.scores
    if scores is None or not isinstance(end, Finished) or end.by_stop_string:
        return []
    return scores.rest()
