"""llama.cpp by its C API, for `bench.engine_peers`: one context, a sequence per request, greedy.

As that module it is run where the package is, and imports nothing of ours but `bench.engine_cases`.
"""

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

from bench.engine_cases import WARM, made_up, seconds

SEQUENCES = 32
CONTEXT = 2176  # tokens of each
BATCH = 2048  # tokens of one call

Piece = tuple[int, int, Sequence[int], bool]
"""A sequence, the position of its first token, its tokens, and whether the next one is wanted."""


class LlamaCpp:
    """A GGUF file in bfloat16."""

    def __init__(self, model: str, threads: int) -> None:
        self._lib: Any = importlib.import_module("llama_cpp")
        self._numpy: Any = importlib.import_module("numpy")
        self._lib.llama_backend_init()
        loaded = self._lib.llama_model_load_from_file(model.encode(), self._lib.llama_model_default_params())
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = SEQUENCES * CONTEXT, SEQUENCES
        params.n_batch, params.n_threads, params.n_threads_batch = BATCH, threads, threads
        self._context = self._lib.llama_init_from_model(loaded, params)
        self._memory = self._lib.llama_get_memory(self._context)
        self._vocab = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(loaded))
        self._batch = self._lib.llama_batch_init(BATCH, 0, 1)
        self._held = (0, 0)  # sequences and tokens of each that the cache has

    def prefill(self, tokens: int) -> float:
        self._clear()
        prompt = made_up(tokens)
        return seconds(lambda: self._run([(0, 0, prompt, True)]))

    def decode(self, batch: int, context: int, steps: int) -> float:
        if self._held != (batch, context):
            self._clear()
            for sequence in range(batch):
                self._run([(sequence, 0, made_up(context), False)])
            self._held = batch, context

        def run(first: int, count: int) -> None:
            for at in range(first, first + count):
                self._run([(sequence, at, made_up(1), True) for sequence in range(batch)])

        run(context, WARM)
        taken_s = seconds(lambda: run(context + WARM, steps))
        for sequence in range(batch):
            self._lib.llama_memory_seq_rm(self._memory, sequence, context, -1)
        return taken_s

    def serve(self, requests: int, tokens: int, output: int) -> float:
        self._clear()
        prompts = [made_up(tokens) for _ in range(requests)]
        return seconds(lambda: self._serve(prompts, output))

    def _serve(self, prompts: Sequence[Sequence[int]], output: int) -> None:
        """Every running request gets its next token, and what is left of a call is filled with prompts."""
        done = [0] * len(prompts)
        answers: list[list[int]] = [[] for _ in prompts]
        while any(len(answer) < output for answer in answers):
            pieces: list[Piece] = []
            for at, answer in enumerate(answers):
                if answer and len(answer) < output:
                    pieces.append((at, len(prompts[at]) + len(answer) - 1, answer[-1:], True))
            left = BATCH - len(pieces)
            for at, prompt in enumerate(prompts):
                part = prompt[done[at] : done[at] + left]
                if part:
                    pieces.append((at, done[at], part, done[at] + len(part) == len(prompt)))
                    done[at] += len(part)
                    left -= len(part)
            for at, token in self._run(pieces):
                answers[at].append(token)

    def _run(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """The sequences that wanted their next token, with it."""
        batch, wanted, count = self._batch, [], 0
        for sequence, start, tokens, wants in pieces:
            for offset, token in enumerate(tokens):
                batch.token[count], batch.pos[count] = token, start + offset
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, sequence
                batch.logits[count] = wants and offset == len(tokens) - 1
                count += 1
            if wants:
                wanted.append((sequence, count - 1))
        batch.n_tokens = count
        if status := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode says {status}")
        return [(sequence, self._best(at)) for sequence, at in wanted]

    def _best(self, at: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, at)
        found = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._vocab)).contents
        return int(self._numpy.frombuffer(found, self._numpy.float32).argmax())

    def _clear(self) -> None:
        self._lib.llama_memory_clear(self._memory, False)
        self._held = 0, 0
