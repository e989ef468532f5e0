"""The real model in real processes over real Mooncake: the reference's text, whatever the shape of the rings."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from cluster import Cluster
from goldens import Golden, reference_text, sure_goldens
from streams import asking, model_of
from waiting import eventually

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
