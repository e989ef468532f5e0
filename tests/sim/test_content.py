"""The simulator's own reading of the fake model agrees with the engine's reference."""

import random

import pytest

from tandem.core.ids import RequestId, Room
from tandem.core.requests import Sampling, Work
from tandem.engine.fake import reference, reference_tokens
from tandem.engine.model import FAKE_EOS
from tandem.sim.content import Content


@pytest.mark.parametrize("prompt", [1, 5, 90])
@pytest.mark.parametrize("most", [1, 2, 30])
@pytest.mark.parametrize("stop_ids", [(), (FAKE_EOS,)])
@pytest.mark.parametrize("layers", [1, 8])
def test_it_generates_the_reference_tokens(prompt: int, most: int, stop_ids: tuple[int, ...], layers: int):
    rng = random.Random(prompt * most)
    text = tuple(rng.randint(32, 126) for _ in range(prompt))
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=7)):
        work = Work(Room(RequestId(1), 1), text, most, stop_ids, sampling, None)
        assert Content(work, layers).tokens == reference_tokens(text, most, stop_ids, layers=layers, sampling=sampling)


@pytest.mark.parametrize("grammar", ["", '{"type":"object"}'])
def test_it_knows_what_looks_back_and_how_likely_tokens_are(grammar: str):
    sampling = Sampling(temperature=1.0, seed=7, frequency_penalty=0.5, logprobs=3)
    work = Work(Room(RequestId(1), 1), tuple(b"once more"), 20, (), sampling, None, generated=4, grammar=grammar)
    content = Content(work, 8)
    assert list(zip(content.tokens, content.logprobs, strict=True)) == reference(work, layers=8)
