"""What `bench.e2e` compares: servers with HTTP, each with its processes, and an engine alone without any server."""

import contextlib
import random
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.beside import Unready, program, tail
from bench.cluster import Cluster
from bench.engine import Case
from bench.streams import Stream, made_up, rate, shows, together, whole_s

SERVES_S = 400.0
"""vLLM compiles before it serves."""
TRIAL = 12
"""Tokens of an answer that tell whether it has text."""
MOST_TRIALS = 8
SERVED_NAME = "model"


@dataclass
class Server:
    """Fits `bench.engine.Timed`. `cluster`: if it is one of ours."""

    name: str
    url: str
    model: str
    vocab: int
    cluster: Cluster | None = None
    _rng: random.Random = field(default_factory=lambda: random.Random(1))
    _known: dict[tuple[int, int], list[list[int]]] = field(default_factory=dict)

    def seconds(self, case: Case) -> float:
        """What its tokens take. Raises ConnectionError."""
        kind, *numbers = case.asked
        count, *more = map(int, numbers)
        match kind:
            case "prefill":
                (stream,) = self.fresh(1, count, 1)
                return stream.first_s
            case "decode":
                return case.tokens / rate(self.decode(count, *more))
            case _:
                prompt, output = more
                return whole_s(self.fresh(count, prompt, output))

    def decode(self, streams: int, context: int, steps: int) -> list[Stream]:
        """So many streams of so many steps after the first token."""
        return self.ask(self.cached(streams, context), steps + 1)

    def cached(self, streams: int, context: int) -> list[list[int]]:
        """Prompts whose KV the server has by now, as far as it keeps any."""
        if (streams, context) not in self._known:
            self._known[streams, context] = self._talkative(streams, context)
        prompts = self._known[streams, context]
        self.ask(prompts, 1)
        return prompts

    def _talkative(self, streams: int, context: int) -> list[list[int]]:
        """New prompts whose answers show: half a letter again and again is no text, and has no time.

        Raises ConnectionError if there are none.
        """
        found: list[list[int]] = []
        for _ in range(MOST_TRIALS):
            tried = self._new(streams - len(found), context)
            answers = self.ask(tried, TRIAL)
            found += [prompt for prompt, answer in zip(tried, answers, strict=True) if shows(answer)]
            if len(found) == streams:
                return found
        raise ConnectionError(f"{self.name} shows no text while it computes")

    def fresh(self, streams: int, prompt: int, output: int) -> list[Stream]:
        """Prompts that nobody has seen before."""
        return self.ask(self._new(streams, prompt), output)

    def ask(self, prompts: list[list[int]], output: int) -> list[Stream]:
        """All at once."""
        return together(self.url, self.model, prompts, output)

    def _new(self, streams: int, tokens: int) -> list[list[int]]:
        return [made_up(self._rng, self.vocab, tokens) for _ in range(streams)]


@contextlib.contextmanager
def vllm_server(python: Path, model: Path, log: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Where it is, once it serves. It ends with all that it has started. Raises Unready.

    Not `vllm serve`, which asks for the version of a package that the wheel for CPUs does not go by.
    """
    port = free_port()
    flags = {
        "--model": model,
        "--served-model-name": SERVED_NAME,
        "--dtype": "bfloat16",
        "--max-model-len": 4096,
        "--max-num-seqs": 64,
        "--host": "127.0.0.1",
        "--port": port,
    }
    words = [str(python), "-P", "-m", "vllm.entrypoints.openai.api_server", "--disable-uvicorn-access-log"]
    words += [str(word) for flag in flags.items() for word in flag]
    with program(words, log, {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", **environment}, speaks=False) as process:
        url = f"http://127.0.0.1:{port}"
        await_health(process, f"{url}/health", log)
        yield url


def await_health(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Until it answers. Raises Unready."""
    end_s = time.monotonic() + SERVES_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise Unready(f"{log.stem} does not serve: {tail(log)}")


def free_port() -> int:
    """On this host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
