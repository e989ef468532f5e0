"""The fake model behind a cluster, and what it must answer."""

import json
import urllib.request
from typing import Any

from cluster import Cluster
from streams import events, model_of
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
