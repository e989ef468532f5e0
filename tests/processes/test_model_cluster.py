"""The real model in real processes over real Mooncake: the reference's text, whatever the shape of the rings."""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from cluster import Cluster
from goldens import Golden, reference_text, sure_goldens
from streams import asking, model_of
from waiting import eventually

from tandem import cli
from tandem.engine.model import bundled_model_path
from tandem.engine.tokens import Tokenizer, load_tokenizer

FLAGS = ("--dtype", "float32", "--threads", "1", "--timer-scale", "5", "--num-pages", "512")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(str(bundled_model_path()))


@pytest.fixture(scope="module")
def goldens() -> list[Golden]:
    return sure_goldens()


def start(cluster_of: Callable[..., Cluster], prefill: int, decode: int) -> Cluster:
    return cluster_of("--prefill-pp", str(prefill), "--decode-pp", str(decode), *FLAGS)


def client_of(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=240)


def complete(cluster: Cluster, golden: Golden) -> str:
    with client_of(cluster) as client:
        answer = client.completions.create(
            model=model_of(cluster),
            prompt=golden["prompt"],
            max_tokens=len(golden["tokens"]),
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(golden["tokens"])
    return answer.choices[0].text


def nearest(goldens: list[Golden], *lengths: int) -> list[Golden]:
    return [min(goldens, key=lambda golden: abs(len(golden["prompt"]) - length)) for length in lengths]


@pytest.mark.parametrize(("prefill", "decode"), [(1, 3), (3, 2), (4, 1)])
def test_every_shape_gives_the_text_of_the_reference(
    cluster_of: Callable[..., Cluster], goldens: list[Golden], tokenizer: Tokenizer, prefill: int, decode: int
) -> None:
    cluster = start(cluster_of, prefill, decode)
    chosen = nearest(goldens, 1, 64, 513)
    with ThreadPoolExecutor(len(chosen)) as pool:
        texts = list(pool.map(lambda golden: complete(cluster, golden), chosen))
    assert texts == [reference_text(golden, tokenizer) for golden in chosen]


def test_a_colocated_group_gives_the_text_of_the_reference(
    cluster_of: Callable[..., Cluster], goldens: list[Golden], tokenizer: Tokenizer
) -> None:
    cluster = cluster_of("--colocated", "--pp", "2", *FLAGS)
    chosen = nearest(goldens, 1, 64, 200, 513)
    with ThreadPoolExecutor(len(chosen)) as pool:
        texts = list(pool.map(lambda golden: complete(cluster, golden), chosen))
    assert texts == [reference_text(golden, tokenizer) for golden in chosen]


def test_two_by_two_gives_the_text_of_the_reference_for_every_golden(
    cluster_of: Callable[..., Cluster], goldens: list[Golden], tokenizer: Tokenizer
) -> None:
    cluster = start(cluster_of, 2, 2)
    assert len(goldens) >= 20
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda golden: complete(cluster, golden), goldens))
    assert texts == [reference_text(golden, tokenizer) for golden in goldens]


def test_a_chat_streams_the_capital_of_france(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, 2, 2)
    with client_of(cluster) as client:
        chunks = client.chat.completions.create(
            model=model_of(cluster),
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "The capital of France is Paris."


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_fits_the_schema_that_was_asked_for(cluster_of: Callable[..., Cluster], stream: bool) -> None:
    """Token 0 is drawn by prefill, the others by decode: both follow the grammar."""
    cluster = start(cluster_of, 2, 2)
    with client_of(cluster) as client:
        answer = client.chat.completions.create(
            model=model_of(cluster),
            messages=[{"role": "user", "content": "Describe a person as JSON."}],
            temperature=0.8,
            seed=int(stream),
            max_tokens=90,
            stream=stream,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            assert answer.choices[0].finish_reason == "stop"
            text = answer.choices[0].message.content
    found = json.loads(text)
    assert list(found) == ["name", "age", "likes"]
    assert isinstance(found["name"], str)
    assert len(found["name"]) <= 12
    assert found["age"] in range(121)
    assert 1 <= len(found["likes"]) <= 2
    assert set(found["likes"]) <= {"tea", "coffee"}
    cluster.at_rest()


def test_log_probabilities_of_the_first_token_come_from_prefill_and_of_the_others_from_decode(
    cluster_of: Callable[..., Cluster], goldens: list[Golden]
) -> None:
    cluster = start(cluster_of, 2, 2)
    (golden,) = nearest(goldens, 64)
    with client_of(cluster) as client:
        answer = client.completions.create(
            model=model_of(cluster), prompt=golden["prompt"], max_tokens=4, temperature=0, logprobs=2
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.token_logprobs) == 4
    for drawn, likeliest in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(likeliest) == 2
        assert max(likeliest.values()) == drawn <= 0, "greedy takes the likeliest"


def test_a_client_that_leaves_during_prefill_gives_all_pages_back(
    cluster_of: Callable[..., Cluster], goldens: list[Golden]
) -> None:
    cluster = start(cluster_of, 2, 2)
    (longest,) = nearest(goldens, 3000)
    with contextlib.closing(asking(cluster, {"prompt": longest["prompt"], "max_tokens": 8})):
        eventually(lambda: cluster.state("p0.1")["ticks_in_flight"] > 0, "prefill computes chunks")
        assert cluster.state("p0.0")["rooms"] == 1
        assert cluster.state("d0.0")["running"] == 0
    eventually(lambda: cluster.state("p0.0")["rooms"] == 0, "prefill lets go")
    cluster.at_rest()


def test_log_and_status_say_that_torch_computes_and_why_the_faster_engine_does_not(
    cluster_of: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start(cluster_of, 2, 2)
    assert cli.run(["status", "--admin-url", cluster.admin_url]) == 0, "it is no fault"
    told, log = (" ".join(text.split()) for text in (capsys.readouterr().out, cluster.stderr()))
    why = "torch, float32: not cpu, as it computes in bfloat16, and --dtype is float32"
    for group in ("p0", "d0"):
        assert f"{group} computes with {why}" in told
        assert f"{group} rank 1 computes with engine {why}" in log
