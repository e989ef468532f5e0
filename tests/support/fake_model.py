"""The fake model behind a cluster, and what it must answer."""

import json
import random
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster import Cluster
from streams import events, model_of, stream
from waiting import DEADLINE_S

from tandem.core.requests import Sampling
from tandem.engine.fake import reference_tokens
from tandem.engine.model import FAKE_EOS

LAYERS = 8
FAKE = ("--model", f"fake:{LAYERS}", "--timer-scale", "5")


def expected(prompt: list[int], max_tokens: int, *, ignore_eos: bool = True, sampling: Sampling | None = None) -> str:
    stop_ids = () if ignore_eos else (FAKE_EOS,)
    tokens = reference_tokens(prompt, max_tokens, stop_ids, layers=LAYERS, sampling=sampling or Sampling())
    return bytes(token for token in tokens if token < FAKE_EOS).decode()


def complete(cluster: Cluster, **body: Any) -> dict[str, Any]:
    content = json.dumps({"model": model_of(cluster), "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{cluster.url}/v1/completions", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


def text_of(response: Any) -> str:
    return "".join(choice["text"] for event in events(response) for choice in event["choices"])


def answers_right(cluster: Cluster, prompt: list[int], rng: random.Random, seed: int) -> None:
    """Ask for a drawn number of tokens, greedy or not, as a stream where the seed is odd; the text must be right."""
    tokens = rng.choice([1, 2, 17, 64])
    sampling = Sampling(temperature=rng.choice([0.0, 1.0]), seed=seed)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": sampling.temperature, "seed": seed}
    text = expected(prompt, tokens, ignore_eos=False, sampling=sampling)
    if seed % 2:
        with stream(cluster, body) as response:
            assert text_of(response) == text
    else:
        assert complete(cluster, **body)["choices"][0]["text"] == text


def all_answered_right(cluster: Cluster, prompts: list[list[int]], max_tokens: int) -> None:
    """Ask all at once; every text must be right."""

    def one(prompt: list[int]) -> str:
        answer = complete(cluster, prompt=prompt, max_tokens=max_tokens, ignore_eos=True)
        text: str = answer["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(one, prompts)) == [expected(prompt, max_tokens) for prompt in prompts]
