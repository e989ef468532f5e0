"""Every architecture and every scaling of rope against transformers, on small random models in float32."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import CONTEXT, LAYERS, VOCAB, logits_of, random_model

from tandem.core.plan import Row
from tandem.core.requests import pages_for
from tandem.engine.model import read_shape

TIE = 1e-2
PAGE_SIZE = 4
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 3000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 3000.0, "factor": 4.0, "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 3000.0, "factor": 2.0}
EVERY_LAYER = {"use_sliding_window": True, "max_window_layers": 0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 3000.0, "factor": 4.0}}),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, dynamic": ("llama", {"rope_parameters": DYNAMIC}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN | {"beta_fast": 8.0, "beta_slow": 0.5}}),
    "qwen2, window": ("qwen2", EVERY_LAYER | {"sliding_window": 9}),
    "qwen2, window of no layer": ("qwen2", EVERY_LAYER | {"sliding_window": 9, "max_window_layers": LAYERS}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3, tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, yarn": ("qwen3", {"head_dim": 32, "rope_parameters": YARN | {"attention_factor": 1.3}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 9}),
    "mistral, window of one page": ("mistral", {"sliding_window": PAGE_SIZE}),
    "mistral, window of one token": ("mistral", {"sliding_window": 1}),
    "mistral, head_dim": ("mistral", {"sliding_window": 30, "head_dim": 32}),
}


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    architecture, changes = CASES[request.param]
    path = tmp_path_factory.mktemp(architecture)
    model = random_model(architecture, **changes)
    model.save_pretrained(path)
    return str(path), model


@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 1, 3, LAYERS)])
def test_any_mix_of_chunks_gives_the_logits_of_transformers(
    cuts: tuple[int, ...], saved: tuple[str, Any], make_ring: Callable[..., Any], make_text: Any
) -> None:
    """Over shuffled pages that held NaN: fresh chunks, later ones, and single tokens of texts of different length."""
    path, model = saved
    dice = random.Random(11)
    ring = make_ring(path, cuts, page_size=PAGE_SIZE, num_pages=120, dtype="float32")
    for stage in ring.stages:
        stage.memory.buffer[:] = b"\xff" * len(stage.memory.buffer)
    numbers = dice.sample(range(120), 120)
    texts = []
    for length in (150, 43, 9, 70):
        tokens = [dice.randrange(VOCAB) for _ in range(length)]
        texts.append(make_text(tokens, [numbers.pop() for _ in range(pages_for(length, PAGE_SIZE))]))
    expected = [logits_of(model, text.tokens) for text in texts]
    while active := [index for index, text in enumerate(texts) if text.cached < len(text.tokens)]:
        rows = []
        for index in active:
            row = texts[index].row(dice.choice([1, 1, 3, 40]), PAGE_SIZE)
            texts[index].cached = row.end
            rows.append(Row(row.room, row.tokens, row.start, row.pages, True, row.sampling))
        for index, row, found in zip(active, rows, ring.logits(rows), strict=True):
            assert torch.allclose(found, expected[index][row.end - 1], atol=5e-3), (index, row.start, row.end)


def test_stages_generate_what_one_does_and_what_transformers_does(
    saved: tuple[str, Any], make_ring: Callable[..., Any], make_text: Any
) -> None:
    path, model = saved
    prompts = [random.Random(seed).choices(range(VOCAB), k=length) for seed, length in ((1, 33), (2, 5))]
    answers = []
    for cuts in ((0, LAYERS), (0, 2, LAYERS), (0, 1, 2, 3, LAYERS)):
        ring = make_ring(path, cuts, page_size=PAGE_SIZE, num_pages=60, dtype="float32")
        texts = [make_text(prompt, range(30 * at, 30 * at + 20)) for at, prompt in enumerate(prompts)]
        while len(texts[0].generated) < 16:
            ring.step(texts, [12, 12])
        answers.append([text.tokens for text in texts])
    assert answers[0] == answers[1] == answers[2]
    for prompt, tokens in zip(prompts, answers[0], strict=True):
        best = logits_of(model, tokens).topk(2).values
        greedy = logits_of(model, tokens).argmax(dim=-1).tolist()
        for at in range(len(prompt), len(tokens)):
            assert tokens[at] == greedy[at - 1] or float(best[at - 1, 0] - best[at - 1, 1]) < TIE, at


def test_bfloat16_is_near(saved: tuple[str, Any], make_ring: Callable[..., Any], make_text: Any) -> None:
    path, model = saved
    tokens = random.Random(3).choices(range(VOCAB), k=60)
    ring = make_ring(path, (0, 2, LAYERS), page_size=16, num_pages=4, dtype="bfloat16")
    found = ring.logits([make_text(tokens, (2, 0, 3, 1)).row(60, 16)])[0]
    expected = logits_of(model, tokens)[-1]
    assert float(torch.nn.functional.cosine_similarity(found, expected, dim=0)) > 0.98


def test_a_window_hides_what_is_before_it(tmp_path: Path, make_ring: Callable[..., Any], make_text: Any) -> None:
    """The last logits depend on (window - 1) tokens more per layer than on the last one, and on none before."""
    random_model("mistral", sliding_window=3).save_pretrained(tmp_path)
    ring = make_ring(str(tmp_path), (0, LAYERS), page_size=2, num_pages=20, dtype="float32")

    def last(tokens: list[int], counts: tuple[int, ...]) -> torch.Tensor:
        text = make_text(tokens, range(20))
        for count in counts:
            row = text.row(count, 2)
            text.cached = row.end
            found = ring.logits([Row(row.room, row.tokens, row.start, row.pages, True, row.sampling)])[0]
        return found

    tokens = random.Random(4).choices(range(VOCAB), k=30)
    reach = LAYERS * 2
    for counts in ((30,), (7, 22, 1)):
        whole = last(tokens, counts)
        hidden, seen = [*tokens], [*tokens]
        hidden[30 - 1 - reach - 1] += 1
        seen[30 - 1 - reach] += 1
        assert torch.equal(last(hidden, counts), whole)
        assert not torch.allclose(last(seen, counts), whole, atol=1e-6)


def test_a_context_that_is_stretched_is_longer(tmp_path: Path) -> None:
    """Qwen's models say only factor and original context: transformers then goes on, and so must requests."""
    random_model("qwen2", max_position_embeddings=64, rope_parameters=YARN).save_pretrained(tmp_path)
    assert read_shape(str(tmp_path)).context == 256 == CONTEXT
