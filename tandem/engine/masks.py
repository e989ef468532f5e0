"""Which tokens the grammars of answers let follow, on the last stage. Without torch."""

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import ConfigError
from tandem.core.ids import Room
from tandem.core.plan import Row
from tandem.engine.grammar import GrammarError, check, limits, source
from tandem.engine.shape import ModelShape
from tandem.engine.tokens import load_codec

GRAMMARS = 64
"""Compiled ones that are kept, those used last."""
ANSWERS = 4096
"""Answers whose state is kept, likewise."""

log = logging.getLogger("tandem")

_loading = threading.Lock()


def vocabulary(shape: ModelShape) -> Any:
    """A model's tokens, for llguidance. Up to seconds of work, once in a process."""
    with _loading:
        return _vocabulary(shape)


@contextmanager
def made_meanwhile(shape: ModelShape) -> Iterator[None]:
    """The vocabulary, on a thread: it is there in the end, or the first grammar will tell what is wrong with it."""
    thread = threading.Thread(target=_make, args=(shape,), name="vocabulary", daemon=True)
    thread.start()
    yield
    thread.join()


def _make(shape: ModelShape) -> None:
    try:
        vocabulary(shape)
    except (ValueError, ConfigError) as error:
        log.warning("answers of this model cannot follow grammars: %s", error)


@functools.lru_cache(maxsize=1)
def _vocabulary(shape: ModelShape) -> Any:
    from llguidance import LLTokenizer

    slices = LLTokenizer.json_slices()
    serialized = load_codec(shape).serialized()
    return LLTokenizer(serialized, n_vocab=shape.vocab, eos_token=list(shape.eos_ids), slices=slices)


class Answer(NamedTuple):
    """How far an answer has come in its grammar."""

    grammar: str
    matcher: Any
    tokens: tuple[int, ...]


class Masks:
    """What may follow depends on the grammar and on the answer's tokens alone: what is kept only saves time.

    `compile` may be called from any thread, `allowed` from one.
    """

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._lock = threading.Lock()  # around the compiled grammars
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._answers: OrderedDict[Room, Answer] = OrderedDict()

    def compile(self, grammar: str) -> None:
        """Keep what `allowed` needs of it. Raises GrammarError."""
        check(grammar)
        self._matcher(grammar)

    def _matcher(self, grammar: str) -> Any:
        """At the beginning of an answer. Nobody waits for the grammar of another."""
        from llguidance import LLMatcher

        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar].deep_copy()
        matcher = LLMatcher(vocabulary(self._shape), source(grammar), log_level=0, limits=limits())
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        with self._lock:
            self._compiled[grammar] = matcher
            if len(self._compiled) > GRAMMARS:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def allowed(self, row: Row) -> NDArray[np.bool_]:
        """For each token of the vocabulary, whether it may be the next one of this row's answer.

        When the answer is complete, or its limits are used up, only an end of the sequence may follow.
        """
        matcher = self._follow(row)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        found: NDArray[np.bool_] = np.zeros(self._shape.vocab, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[: self._shape.vocab]
        found[: len(known)] = known
        if not found.any():
            found[list(self._shape.eos_ids)] = True
        return found

    def _follow(self, row: Row) -> Any:
        tokens = row.past[len(row.past) - row.generated :]
        answer = self._answers.get(row.room)
        if answer is None or answer.grammar != row.grammar or tokens[: len(answer.tokens)] != answer.tokens:
            answer = Answer(row.grammar, self._matcher(row.grammar), ())
        answer.matcher.consume_tokens(list(tokens[len(answer.tokens) :]))
        self._keep(row.room, answer._replace(tokens=tokens))
        return answer.matcher

    def _keep(self, room: Room, answer: Answer) -> None:
        self._answers[room] = answer
        self._answers.move_to_end(room)
        if len(self._answers) > ANSWERS:
            self._answers.popitem(last=False)
