"""Sampling parameters against a plain reading of them, one row at a time; and no row sees another."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tandem.core.ids import PageId, RequestId, Room
from tandem.core.plan import Row
from tandem.core.requests import Logprobs, Sampling
from tandem.engine.sampler import draw, uniform

VOCAB = 23
ROOM, PAGE = Room(RequestId(1), 1), (PageId(0),)
Floats = NDArray[np.float64]


def row_of(sampling: Sampling, past: tuple[int, ...] = (3,), generated: int = 0) -> Row:
    return Row(ROOM, past[-1:], len(past) - 1, PAGE, True, sampling, past, generated)


# one row, plainly


def changed(logits: Floats, row: Row) -> Floats:
    sampling, logits = row.sampling, logits.copy()
    for token in sorted(set(row.past)):
        by = sampling.repetition_penalty
        logits[token] = logits[token] / by if logits[token] > 0 else logits[token] * by
    answer = row.past[len(row.past) - row.generated :]
    for token in sorted(set(answer)):
        logits[token] -= sampling.frequency_penalty * answer.count(token)
        logits[token] -= sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        if token < len(logits):
            logits[token] += bias
    return logits


def kept(weights: Floats, sampling: Sampling) -> list[int]:
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        whole, held, count = sum(weights[token] for token in order), 0.0, 0
        while held < sampling.top_p * whole or not count:
            held += weights[order[count]]
            count += 1
        order = order[:count]
    return [token for token in order if weights[token] >= sampling.min_p * weights[order[0]]]


def plainly(logits: Floats, row: Row, allowed: list[int] | None = None) -> int:
    sampling, own = row.sampling, changed(logits, row)
    if allowed is not None:
        own = np.array([value if token in allowed else -math.inf for token, value in enumerate(own)])
    if sampling.temperature == 0:
        return int(own.argmax())
    weights = np.exp((own - own.max()) / sampling.temperature)
    left = sorted(kept(weights, sampling))
    target = uniform(sampling.seed, row.end) * sum(weights[token] for token in left)
    passed = 0.0
    for token in left:
        passed += weights[token]
        if passed > target:
            return token
    return [token for token in left if weights[token]][-1]


def plain_logprobs(logits: Floats, token: int, count: int) -> Logprobs:
    logs = logits - logits.max() - math.log(sum(np.exp(logits - logits.max())))
    order = sorted(range(len(logs)), key=lambda each: (-logs[each], each))[:count]
    return Logprobs(float(logs[token]), tuple((each, float(logs[each])) for each in order))


def close(got: Logprobs | None, want: Logprobs) -> bool:
    if got is None or [token for token, _ in got.likeliest] != [token for token, _ in want.likeliest]:
        return False
    pairs = zip((got.drawn, *dict(got.likeliest).values()), (want.drawn, *dict(want.likeliest).values()), strict=True)
    return all(math.isclose(one, other, abs_tol=1e-9) for one, other in pairs)


# any of them

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.6, 0.1]),
    seed=st.integers(0, 2**63 - 1),
    top_k=st.sampled_from([0, 0, 1, 3, 10, VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7, -1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5]),
    logit_bias=st.lists(st.tuples(st.integers(0, VOCAB + 3), st.sampled_from([-100.0, 0.5, 3.0])), max_size=3).map(
        tuple
    ),
    logprobs=st.sampled_from([-1, -1, 0, 1, 5, 20]),
)


@st.composite
def rows(draw_one: st.DrawFn) -> Row:
    past = tuple(draw_one(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)))
    return row_of(draw_one(SAMPLINGS), past, draw_one(st.integers(0, len(past))))


def logits_of(count: int, seed: int, width: torch.dtype) -> torch.Tensor:
    """Whole numbers among them, so that some are equal."""
    drawn = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    return torch.where(torch.arange(VOCAB) % 3 == 0, drawn.round(), drawn).to(width)


MASKS = st.one_of(st.none(), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6, unique=True))
BATCHES = st.lists(st.tuples(rows(), MASKS), min_size=1, max_size=8)
WIDTHS = st.sampled_from([torch.float32, torch.bfloat16])


def mask_of(allowed: list[int]) -> torch.Tensor:
    return torch.tensor([token in allowed for token in range(VOCAB)])


@given(batch=BATCHES, seed=st.integers(0, 1000), width=WIDTHS)
@settings(max_examples=300)
def test_every_row_is_drawn_as_it_reads(
    batch: list[tuple[Row, list[int] | None]], seed: int, width: torch.dtype
) -> None:
    logits = logits_of(len(batch), seed, width)
    masks = {index: mask_of(allowed) for index, (_, allowed) in enumerate(batch) if allowed is not None}
    got = draw(logits, [row for row, _ in batch], masks)
    told = got.logprobs or (None,) * len(batch)
    for (row, allowed), own, (token,), logprobs in zip(batch, logits, got.tokens, told, strict=True):
        exact = own.double().numpy()
        assert token == plainly(exact, row, allowed)
        if row.sampling.logprobs < 0:
            assert logprobs is None
        else:
            assert close(logprobs, plain_logprobs(exact, token, row.sampling.logprobs))


@given(batch=BATCHES, seed=st.integers(0, 1000), width=WIDTHS)
@settings(max_examples=200)
def test_a_row_alone_gives_what_it_gives_among_others(
    batch: list[tuple[Row, list[int] | None]], seed: int, width: torch.dtype
) -> None:
    logits = logits_of(len(batch), seed, width)
    masks = {index: mask_of(allowed) for index, (_, allowed) in enumerate(batch) if allowed is not None}
    together = draw(logits, [row for row, _ in batch], masks)
    for index, (row, _) in enumerate(batch):
        own = {0: masks[index]} if index in masks else {}
        alone = draw(logits[index : index + 1], [row], own)
        assert alone.tokens == together.tokens[index : index + 1]
        if alone.logprobs:
            assert alone.logprobs == together.logprobs[index : index + 1]


def test_a_large_vocabulary_gives_a_row_the_same_alone() -> None:
    """Wide enough for torch to divide its work among threads."""
    logits = torch.randn(12, 49_152, generator=torch.Generator().manual_seed(3))
    ways = [
        Sampling(0.9, 0.9, 5, logprobs=20),
        Sampling(1.1, seed=6, top_k=40),
        Sampling(0.7, seed=7, min_p=0.05, frequency_penalty=0.5),
        Sampling(repetition_penalty=1.2, logprobs=3),
    ]
    batch = [row_of(ways[index % 4], tuple(range(index + 1, 400)), 100) for index in range(12)]
    together = draw(logits, batch)
    for index, row in enumerate(batch):
        alone = draw(logits[index : index + 1], [row])
        assert alone.tokens == together.tokens[index : index + 1]
        assert not alone.logprobs or alone.logprobs == together.logprobs[index : index + 1]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 50.0])
def test_a_nucleus_in_a_large_vocabulary_is_the_same_however_large_it_is(temperature: float) -> None:
    """From a few tokens to more than are looked at first."""
    logits = (torch.randn(6, 5_000, generator=torch.Generator().manual_seed(3)) * 4).to(torch.bfloat16)
    batch = [row_of(Sampling(temperature, top_p, seed)) for top_p in (0.5, 0.97) for seed in range(3)]
    got = draw(logits, batch)
    for row, own, (token,) in zip(batch, logits, got.tokens, strict=True):
        assert token == plainly(own.double().numpy(), row)


def test_a_nucleus_is_found_in_a_long_tail_and_in_a_flat_row_beside_it() -> None:
    logits = torch.randn(5, 49_152, generator=torch.Generator().manual_seed(9)) * 3
    logits[0, ::1000] += 20  # hardly any tail
    ways = [Sampling(each, 0.95, seed=3) for each in (1.0, 0.8, 2.0, 1e9)] + [Sampling(1.0, 0.9, 4, min_p=0.001)]
    batch = [row_of(way) for way in ways]
    for row, own, (token,) in zip(batch, logits, draw(logits, batch).tokens, strict=True):
        assert token == plainly(own.double().numpy(), row), row.sampling


@pytest.mark.parametrize("temperature", [0.4, 1.5, 1e6])
def test_a_large_vocabulary_is_cut_as_it_reads(temperature: float) -> None:
    """Few, many and more tokens than blocks bound; many logits are equal, at a great temperature nearly all weights."""
    logits = (torch.randn(20, 5_000, generator=torch.Generator().manual_seed(4)) * 4).to(torch.bfloat16)
    ways = [
        Sampling(temperature, top_p, 11 * top_k, top_k, min_p, logprobs=logprobs)
        for top_k in (1, 40, 1024, 1025, 4999)
        for top_p, min_p, logprobs in ((1.0, 0.0, 5), (0.9, 0.0, -1), (1.0, 0.3, 0), (0.8, 0.002, 20))
    ]
    batch = [row_of(way) for way in ways]
    got = draw(logits, batch)
    for index, (row, own, (token,)) in enumerate(zip(batch, logits, got.tokens, strict=True)):
        plain = own.double().numpy()
        assert token == plainly(plain, row), row.sampling
        if row.sampling.logprobs >= 0:
            assert close(got.logprobs[index], plain_logprobs(plain, token, row.sampling.logprobs))


def test_logprobs_are_of_the_model_whatever_is_asked_for() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    sampling = Sampling(2.0, 0.5, 1, logit_bias=((0, 100.0),), presence_penalty=2.0, logprobs=2)
    got = draw(logits, [row_of(sampling, (3, 3), 2)])
    assert got.tokens == ((0,),)
    assert close(got.logprobs[0], plain_logprobs(logits[0].double().numpy(), 0, 2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_of_next_to_nothing_leaves_numbers(temperature: float) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [3, 4]] = 7.0
    sampling = Sampling(temperature, repetition_penalty=1e-320, seed=5)
    for allowed in ([3], [4, 5], [5]):
        drawn = draw(logits, [row_of(sampling, (3, 4, 3), 1)], {0: mask_of(allowed)})
        assert drawn.tokens == ((allowed[0],),)


def test_a_prompt_counts_for_repetition_only() -> None:
    logits = torch.tensor([[4.0, 3.9, 0.0]])
    once = {"past": (0, 1, 2), "generated": 1}
    assert draw(logits, [row_of(Sampling(presence_penalty=2.0, frequency_penalty=2.0), **once)]).tokens == ((0,),)
    assert draw(logits, [row_of(Sampling(repetition_penalty=2.0), (0, 2), 1)]).tokens == ((1,),)


@pytest.mark.parametrize("others", [[], [Sampling(1.0, top_k=3, logprobs=4, presence_penalty=1.0)]])
def test_who_asks_for_nothing_gets_no_logprobs(others: list[Sampling]) -> None:
    batch = [row_of(sampling) for sampling in (Sampling(), *others)]
    got = draw(logits_of(len(batch), 1, torch.float32), batch)
    assert [each is None for each in got.logprobs] == ([True, False] if others else [])
