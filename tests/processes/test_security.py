"""What a whole cluster writes about its clients' requests, and what others can read of its secrets."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from fake_model import LAYERS, expected
from waiting import DEADLINE_S

PROMPT = "xyzzy: the prompt of a patient"
KEY = "sk-a-key-of-all-clients-0123456789"


def ask(cluster: Cluster, key: str, **fields: Any) -> dict[str, Any]:
    body = {"model": f"fake:{LAYERS}", "prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    head = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    content = json.dumps({**body, **fields}).encode()
    request = urllib.request.Request(f"{cluster.url}/v1/completions", content, head)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        read: dict[str, Any] = json.load(answer)
    return read


def test_no_process_writes_a_prompt_an_answer_or_a_key_and_no_command_line_has_one(no_other_cluster, monkeypatch):
    monkeypatch.setenv("TANDEM_API_KEY", KEY)
    with Cluster("--model", f"fake:{LAYERS}", "--timer-scale", "5") as cluster:
        answer = ask(cluster, KEY)["choices"][0]["text"]
        assert answer == expected(list(PROMPT.encode()), 30)
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(cluster, "sk-another")
        with refused.value:
            assert refused.value.code == 401
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(cluster, KEY, max_tokens=10**6)
        with refused.value:
            assert refused.value.code == 400
        command_lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in cluster.pids.values()]
        command_lines.append(Path(f"/proc/{cluster.process.pid}/cmdline").read_text())
        secret_file = next(word for word in command_lines[0].split("\0") if word.startswith("--cluster-secret-file="))
        mode = os.stat(secret_file.partition("=")[2]).st_mode
        cluster.at_rest()
        cluster.stop()
        logged = cluster.stderr()
    assert "30 tokens" in logged, "there is something to look at"
    tokens = ", ".join(map(str, PROMPT.encode()[:6]))
    assert [piece for piece in (PROMPT[:12], answer[:12], KEY, tokens) if piece in logged] == []
    assert not [line for line in command_lines if KEY in line]
    assert mode & 0o077 == 0
