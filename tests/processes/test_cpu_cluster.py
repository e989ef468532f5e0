"""Clusters with the CPU engine over real Mooncake: the text of one process, bit by bit, through any rings."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from cluster import Cluster
from streams import model_of

from tandem.core.ids import LayerId, RequestId, Room
from tandem.core.requests import Sampling, Work
from tandem.engine.cpu.build import obstacle
from tandem.engine.load import build_engine
from tandem.engine.model import bundled_model_path, read_shape
from tandem.engine.shape import ModelShape
from tandem.engine.solo import generate
from tandem.engine.tokens import load_tokenizer
from tandem.ports import Engine

FLAGS = ("--engine", "cpu", "--timer-scale", "5", "--num-pages", "512", "--chunked-prefill-size", "128")
TOKENS = 12
LENGTHS = (5, 100, 300)


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    found = read_shape(str(bundled_model_path()))
    if reason := obstacle(found, "bfloat16", 16):
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def alone(shape: ModelShape) -> Engine:
    layers = LayerId(0), LayerId(shape.layers)
    return build_engine(shape, layers, page_size=16, num_pages=64, engine="cpu", threads=1)


def prompts(shape: ModelShape) -> list[list[int]]:
    dice = random.Random(8)
    return [[dice.randrange(1000, shape.vocab) for _ in range(length)] for length in LENGTHS]


def text_of(engine: Engine, prompt: list[int]) -> str:
    work = Work(Room(RequestId(1), 1), tuple(prompt), TOKENS, (), Sampling(), None)
    detokenizer = load_tokenizer(str(bundled_model_path())).detokenizer()
    text = "".join(detokenizer.push(token) for token in generate(engine, work, page_size=16))
    return text + detokenizer.finish()


def complete(cluster: Cluster, prompt: list[int]) -> str:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=240) as client:
        answer = client.completions.create(
            model=model_of(cluster), prompt=prompt, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
        )
    return answer.choices[0].text


def test_prefill_and_decode_rings_give_the_text_of_one_process(
    cluster_of: Callable[..., Cluster], shape: ModelShape, alone: Engine
) -> None:
    """In a batch, over two layer splits, in chunks, with two threads a stage: all of it changes nothing."""
    cluster = cluster_of("--prefill-pp", "2", "--decode-pp", "2", "--threads", "2", *FLAGS)
    asked = prompts(shape)
    with ThreadPoolExecutor(len(asked)) as pool:
        texts = list(pool.map(lambda prompt: complete(cluster, prompt), asked))
    assert texts == [text_of(alone, prompt) for prompt in asked]
    cluster.at_rest()
