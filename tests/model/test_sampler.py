"""The sampler: tokens follow from (logits, sampling, position), whoever else is in the batch."""

import pytest
import torch

from tandem.core.requests import Sampling
from tandem.engine import sampler
from tandem.engine.sampler import sample, uniform


def logits_of(rows: int, vocab: int = 50, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [9.0, 0.0, 0.0, 9.0]])
    assert sample(logits, [Sampling()] * 2, [5, 6]) == [1, 0]


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    logits = logits_of(16, 4096)
    sampling = [Sampling(0.3 * (row % 4), 1.0 if row % 3 else 0.8, row // 2) for row in range(16)]
    positions = list(range(100, 116))
    together = sample(logits, sampling, positions)
    alone = [sample(logits[row : row + 1], [sampling[row]], [positions[row]])[0] for row in range(16)]
    backwards = sample(logits.flip(0), sampling[::-1], positions[::-1])[::-1]
    assert together == alone == backwards


def test_a_token_does_not_depend_on_torchs_generator() -> None:
    logits = logits_of(4)
    torch.manual_seed(1)
    first = sample(logits, [Sampling(1.0)] * 4, [1, 2, 3, 4])
    torch.manual_seed(2)
    assert sample(logits, [Sampling(1.0)] * 4, [1, 2, 3, 4]) == first


def test_seed_and_position_both_matter() -> None:
    logits = logits_of(1, 1000) * 0.01
    drawn = {
        (seed, position): sample(logits, [Sampling(1.0, 1.0, seed)], [position])[0]
        for seed in range(8)
        for position in range(8)
    }
    assert len(set(drawn.values())) > 50


def test_tokens_are_drawn_in_proportion() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    rows = 20_000
    for temperature in (1.0, 2.0):
        expected = (probabilities.log() / temperature).softmax(0)
        drawn = sample(probabilities.log().expand(rows, -1), [Sampling(temperature, seed=7)] * rows, range(rows))
        found = torch.bincount(torch.tensor(drawn), minlength=5) / rows
        assert torch.allclose(found, expected, atol=0.015), (temperature, found, expected)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.4, {0}), (0.5, {0}), (0.51, {0, 3}), (0.76, {0, 1, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_holds_it(top_p: float, kept: set[int]) -> None:
    logits = torch.tensor([0.5, 0.15, 0.1, 0.25]).log().expand(3000, -1)
    assert set(sample(logits, [Sampling(1.0, top_p)] * 3000, range(3000))) == kept


def test_no_top_p_at_all_is_greedy() -> None:
    logits = logits_of(8, 500)
    assert sample(logits, [Sampling(1.0, 0.0)] * 8, range(8)) == sample(logits, [Sampling()] * 8, range(8))


def test_the_largest_noise_still_draws_a_possible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may lift the target to the whole sum, behind which only impossible tokens lie."""
    monkeypatch.setattr(sampler, "uniform", lambda seed, position: 1.0)
    logits = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]])
    assert sample(logits, [Sampling(1.0)], [0]) == [1]


def test_an_impossible_token_is_never_drawn() -> None:
    logits = torch.full((2000, 6), float("-inf"))
    logits[:, 2:4] = 0.0
    assert set(sample(logits, [Sampling(1.0)] * 2000, range(2000))) == {2, 3}


def test_almost_no_temperature_is_greedy() -> None:
    logits = logits_of(8, 500) * 100
    greedy = sample(logits, [Sampling()] * 8, range(8))
    assert sample(logits, [Sampling(1e-8)] * 8, range(8)) == greedy
    assert sample(logits, [Sampling(1.0, 1e-9)] * 8, range(8)) == greedy


def test_noise_is_uniform_and_takes_any_seed() -> None:
    numbers = torch.tensor([uniform(3, position) for position in range(4000)])
    assert abs(float(numbers.mean()) - 0.5) < 0.02
    assert float(numbers.min()) >= 0.0
    assert float(numbers.max()) < 1.0
    assert uniform(-1, 0) == uniform(2**64 - 1, 0) != uniform(2**63, 0)
