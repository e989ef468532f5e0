"""Engines of others in a process of their own, for `bench.engine`: transformers, vLLM on the CPU, llama.cpp.

It is run in the environment that has the package, and imports nothing of ours but `bench.engine_cases` and
`bench.engine_llama`.
"""

import sys
from collections.abc import Callable
from typing import Any

from bench.engine_cases import WARM, Measured, made_up, seconds, serve_lines
from bench.engine_llama import LlamaCpp


class Transformers:
    """transformers in bfloat16, of a directory in its own format: the batch that its users write."""

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    def prefill(self, tokens: int) -> float:
        ids = self._torch.tensor([made_up(tokens)])
        return seconds(lambda: self._model(ids, logits_to_keep=1).logits[:, -1].argmax(-1))

    def decode(self, batch: int, context: int, steps: int) -> float:
        ids = self._torch.tensor([made_up(context)] * batch)
        out = self._model(ids, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)

        def run(count: int) -> None:
            nonlocal out, token
            for _ in range(count):
                out = self._model(token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)

        run(WARM)
        return seconds(lambda: run(steps))

    def serve(self, requests: int, tokens: int, output: int) -> float:
        ids = self._torch.tensor([made_up(tokens) for _ in range(requests)])
        options: Any = {"max_new_tokens": output, "min_new_tokens": output, "do_sample": False, "pad_token_id": 0}
        return seconds(lambda: self._model.generate(ids, attention_mask=self._torch.ones_like(ids), **options))


class Vllm:
    """vLLM with its own scheduler on the CPU. Decode is what a longer answer takes longer, the prompts being cached."""

    def __init__(self, model: str, threads: int) -> None:
        from vllm import LLM, SamplingParams

        del threads  # it takes OMP_NUM_THREADS, which the parent has set
        self._params = SamplingParams
        self._llm = LLM(
            model,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=4096,
            max_num_seqs=64,
        )

    def prefill(self, tokens: int) -> float:
        return self._seconds([made_up(tokens)], 1)

    def decode(self, batch: int, context: int, steps: int) -> float:
        prompts = [made_up(context) for _ in range(batch)]
        self._seconds(prompts, 1)
        short_s = self._seconds(prompts, WARM)
        return self._seconds(prompts, WARM + steps) - short_s

    def serve(self, requests: int, tokens: int, output: int) -> float:
        return self._seconds([made_up(tokens) for _ in range(requests)], output)

    def _seconds(self, prompts: list[list[int]], output: int) -> float:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        params = self._params(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        return seconds(lambda: self._llm.generate(given, params, use_tqdm=False))


PEERS: dict[str, Callable[[str, int], Measured]] = {"transformers": Transformers, "vllm": Vllm, "llama.cpp": LlamaCpp}


def open_peer(name: str, model: str, threads: int) -> Measured:
    """Load it, which takes seconds."""
    return PEERS[name](model, threads)


if __name__ == "__main__":
    serve_lines(open_peer(sys.argv[1], sys.argv[2], int(sys.argv[3])))
