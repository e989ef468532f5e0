"""Answers that follow a grammar: masks alone, one process, and whole pairs of rings with the real model."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tandem.core.config import Group, Limits, RankOptions, RoleName, split_layers
from tandem.core.ids import PageId, RankId, RequestId, Room
from tandem.core.plan import Row
from tandem.core.requests import Logprobs, Reason, Sampling, Work
from tandem.engine import masks as masks_module
from tandem.engine.grammar import JSON_OBJECT, GrammarError
from tandem.engine.masks import Masks
from tandem.engine.model import bundled_model_path, read_shape
from tandem.engine.solo import generate
from tandem.engine.tokens import Tokenizer, load_tokenizer
from tandem.runtime.resources import load_resources
from tandem.sim.client import Client
from tandem.sim.world import Cluster, World

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "minItems": 1, "maxItems": 2},
        },
        "required": ["name", "age", "likes"],
        "additionalProperties": False,
    }
)
AGE = json.dumps(
    {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["age"],
        "additionalProperties": False,
    }
)
MODEL = str(bundled_model_path())
EOS = 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def masks() -> Masks:
    return Masks(read_shape(MODEL))


def row(answer: Sequence[int], grammar: str = PERSON, number: int = 1) -> Row:
    past = (5, 6, *answer)
    room = Room(RequestId(number), 1)
    return Row(room, past[-1:], len(past) - 1, (PageId(0),), True, Sampling(), past, len(answer), grammar)


def fits(text: str) -> bool:
    """Whether it is JSON of the schema above, exactly."""
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "likes"]
        and isinstance(found["name"], str)
        and len(found["name"]) <= 12
        and type(found["age"]) is int
        and 0 <= found["age"] <= 120
        and 1 <= len(found["likes"]) <= 2
        and set(found["likes"]) <= {"tea", "coffee"}
    )


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()


# masks


def test_the_vocabulary_is_there_when_a_rank_that_compiles_grammars_has_loaded_its_layers() -> None:
    """Or the first request with a schema would wait for it. The ranks between the first and the last have none."""

    def made(rank: int) -> int:
        masks_module._vocabulary.cache_clear()
        load_resources(
            RankOptions(
                cluster="c",
                group=Group(RoleName.PREFILL, "p0", (1, 1, 1)),
                rank=RankId(rank),
                model=MODEL,
                served_model_name="m",
                limits=Limits(num_pages=4),
                registry_url="",
                run_dir="",
            )
        )
        return masks_module._vocabulary.cache_info().currsize

    assert [made(rank) for rank in (1, 2)] == [0, 1]


def test_what_may_follow_is_what_continues_the_answer(masks: Masks, tokenizer: Tokenizer) -> None:
    begun = masks.allowed(row(()))
    assert {text_of(tokenizer, [int(token)]) for token in np.flatnonzero(begun)} <= {"{", '{"', '{"name', "{ "}
    assert begun.any()
    complete = tokenizer.encode_text('{"name":"Ann","age":7,"likes":["tea"]}')
    assert np.flatnonzero(masks.allowed(row(complete))).tolist() == [EOS]
    assert np.flatnonzero(masks.allowed(row([*complete, EOS, EOS]))).tolist() == [EOS]


def test_what_is_kept_of_an_answer_changes_nothing(masks: Masks, tokenizer: Tokenizer) -> None:
    """In steps, at once, after another answer in the same room, and after all has been forgotten."""
    text = tokenizer.encode_text('{"name":"Ann","age":12,"likes":["coffee"')
    stepwise = [masks.allowed(row(text[:count])) for count in range(len(text) + 1)]
    for count in (len(text), 3, 0, 7):
        fresh = Masks(read_shape(MODEL)).allowed(row(text[:count]))
        assert (stepwise[count] == fresh).all()
        assert (masks.allowed(row(text[:count])) == fresh).all()
    other = masks.allowed(row(text[:3], JSON_OBJECT))
    assert (other != stepwise[3]).any()


def test_answers_and_grammars_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "ANSWERS", 2)
    monkeypatch.setattr(masks_module, "GRAMMARS", 2)
    masks = Masks(read_shape(MODEL))
    for number in range(4):
        masks.allowed(row((), f'{{"const":{number}}}', number))
    assert (len(masks._answers), len(masks._compiled)) == (2, 2)


def test_an_answer_that_has_left_its_grammar_can_only_end(masks: Masks, tokenizer: Tokenizer) -> None:
    astray = tokenizer.encode_text("Once upon a time")
    assert np.flatnonzero(masks.allowed(row(astray))).tolist() == [EOS]


def test_a_bad_grammar_is_refused_before_anything_is_kept(masks: Masks) -> None:
    with pytest.raises(GrammarError, match="objekt"):
        masks.compile('{"type":"objekt"}')


# whole answers


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, 0.95, seed=4), Sampling(1.5, seed=5)])
def test_an_answer_fits_its_schema(smollm: Any, tokenizer: Tokenizer, sampling: Sampling) -> None:
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": "Describe a person as JSON."}]))
    work = Work(Room(RequestId(1), 1), prompt, 90, tokenizer.eos_ids, sampling, None, grammar=PERSON)
    answer = list(generate(smollm.stages[0], work, page_size=smollm.page_size))
    assert answer[-1] in tokenizer.eos_ids
    assert fits(text_of(tokenizer, answer))


def test_a_bias_against_a_grammar_loses(smollm: Any, tokenizer: Tokenizer) -> None:
    wanted = tuple((token, 100.0) for token in tokenizer.encode_text("Sure"))
    sampling = Sampling(logit_bias=wanted)
    prompt = tuple(tokenizer.encode_text("Write JSON:"))
    work = Work(Room(RequestId(1), 1), prompt, 90, tokenizer.eos_ids, sampling, None, grammar='{"enum":[17]}')
    answer = list(generate(smollm.stages[0], work, page_size=smollm.page_size))
    assert text_of(tokenizer, answer) == "17"


def work_of(number: int, tokenizer: Tokenizer, sampling: Sampling, grammar: str) -> Work:
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": f"How old is Ann {number}?"}]))
    return Work(Room(RequestId(number), 1), prompt, 30, tokenizer.eos_ids, sampling, None, grammar=grammar)


class Logged(Client):
    """Keeps the log-probabilities that groups tell, by request and index: both groups tell the same."""

    def __init__(self) -> None:
        super().__init__()
        self.logprobs: dict[tuple[int, int], Logprobs] = {}

    def _check_token(self, answer: Any, group: str, message: Any) -> None:
        super()._check_token(answer, group, message)
        at = message.room.rid, message.index + answer.firsts[message.room.attempt]
        assert message.logprobs is not None
        assert self.logprobs.setdefault(at, message.logprobs) == message.logprobs


def test_a_pair_gives_what_one_process_gives(smollm: Any, stages: Any, tokenizer: Tokenizer) -> None:
    asked = [Sampling(logprobs=1), Sampling(0.9, seed=8, frequency_penalty=0.4, logprobs=0, repetition_penalty=1.1)]
    works = [work_of(number, tokenizer, sampling, AGE) for number, sampling in enumerate(asked, 1)]
    groups = (
        Group(RoleName.PREFILL, "p0", split_layers(stages.shape.layers, 1)),
        Group(RoleName.DECODE, "d0", split_layers(stages.shape.layers, 2)),
    )
    limits = Limits(num_pages=32, context=stages.shape.context, chunked_prefill_size=16)
    client = Logged()
    world = World(5, Cluster(groups, limits), stages.engine, client)
    for work in works:
        world.router.submit(work, ("p0", "d0"))
    world.run()
    client.check()
    world.check_at_rest()
    for work in works:
        got = client.answers[work.room]
        assert got.ended is Reason.STOP
        assert got.tokens == list(generate(smollm.stages[0], work, page_size=smollm.page_size))
        found = json.loads(text_of(tokenizer, got.tokens))
        assert list(found) == ["age"]
        assert found["age"] in range(121)
        told = [client.logprobs[work.room.rid, index] for index in range(len(got.tokens))]
        assert all(logprobs.drawn <= 0 for logprobs in told)
        assert all(len(logprobs.likeliest) == work.sampling.logprobs for logprobs in told)
