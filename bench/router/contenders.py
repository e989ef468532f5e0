"""Who is measured: our router before mock groups, and the routers of others before mock workers."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.beside import Unready, module, program, ready, tail
from bench.router import groups, workers
from tandem.runtime.embedded import EmbeddedRegistry

PEERS = "TANDEM_PEERS"
"""Of the environment: a directory that holds `pip install --no-deps --target DIR/NAME NAME==VERSION` of each peer."""
MODEL_NAME = "mock"
CLUSTER = "bench"
MOST_REQUESTS = 4096
SERVES_S = 30.0
ASK_S = 5.0
PREFILL, DECODE = ("p0", "p1"), ("d0", "d1")
NGINX = "nginx"
NGINX_CONFIGURATION = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/nginx-errors.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/temp;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  upstream decode {{ {servers} keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://decode; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Contender:
    """A router that serves."""

    name: str
    port: int
    pid: int
    prompts: Sequence[object]  # in the form that it takes without tokenising

    def bodies(self, *, tokens: int, every_ms: int, stream: bool) -> tuple[str, ...]:
        """Requests that it passes on as they are."""
        return bodies(self.prompts, tokens=tokens, every_ms=every_ms, stream=stream)


@dataclass(frozen=True)
class Said:
    """The same prompts as texts and as tokens, and an answer in both forms, a piece of text for each token."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    reply: tuple[str, ...]
    reply_ids: tuple[int, ...]


@dataclass(frozen=True)
class Peer:
    """A router of others: its package, and what its command line needs to know of the workers."""

    package: str
    version: str
    module: str
    flags: Callable[[workers.Where], list[str]]
    takes_ids: bool

    @property
    def name(self) -> str:
        """As a table shows it."""
        return f"{self.package} {self.version}"


def _sglang_flags(where: workers.Where) -> list[str]:
    prefill = [word for port in where.prefill for word in ("--prefill", url(port), "8998")]
    return ["--pd-disaggregation", *prefill, *_decode_flags(where)]


def _vllm_flags(where: workers.Where) -> list[str]:
    prefill = [word for port in where.prefill for word in ("--prefill", url(port))]
    return ["--vllm-pd-disaggregation", *prefill, *_decode_flags(where)]


def _decode_flags(where: workers.Where) -> list[str]:
    return [word for port in where.decode for word in ("--decode", url(port))]


RIVALS = (
    Peer("sglang-router", "0.3.2", "sglang_router.launch_router", _sglang_flags, takes_ids=False),
    Peer("vllm-router", "0.1.17", "vllm_router.launch_router", _vllm_flags, takes_ids=True),
    Peer("smg", "1.13.0", "smg.launch_router", _sglang_flags, takes_ids=False),
)
"""In PD mode, as they are unless told otherwise. Those that take no token ids get text, and pass it on."""


def bodies(prompts: Sequence[object], *, tokens: int, every_ms: int, stream: bool) -> tuple[str, ...]:
    """Of completions: the mocks say a token every so many milliseconds."""
    wanted = {"model": MODEL_NAME, "max_tokens": tokens, "seed": every_ms, "stream": stream}
    return tuple(json.dumps({**wanted, "prompt": prompt}, separators=(",", ":")) for prompt in prompts)


@contextlib.contextmanager
def ours(directory: Path, model: str, said: Said) -> Iterator[tuple[Contender, dict[str, str]]]:
    """Our router before mock groups; with it, their intakes by group. Raises Unready."""
    private = directory / "run"
    private.mkdir(mode=0o700)
    secret = private / "secret"
    secret.touch(0o600)
    secret.write_text(os.urandom(16).hex())
    with contextlib.ExitStack() as stack:
        registry = EmbeddedRegistry(private)
        stack.callback(registry.stop)
        order = groups.Order(
            registry.url, str(secret), CLUSTER, str(private), MODEL_NAME, PREFILL, DECODE, said.reply_ids
        )
        where = stack.enter_context(module("bench.router.groups", order, groups.Where, directory / "groups.log"))
        command = [sys.executable, "-P", "-m", "tandem.cli", "router", f"--registry-url={registry.url}", "--supervised"]
        command += [f"--cluster-secret-file={secret}", f"--cluster={CLUSTER}", f"--model={model}", "--port=0"]
        command += [f"--served-model-name={MODEL_NAME}", f"--max-concurrent-requests={MOST_REQUESTS}"]
        log = directory / "router.log"
        process = stack.enter_context(program(command, log))
        port = int(json.loads(ready(process, log))["url"].rpartition(":")[2])
        contender = Contender("tandem", port, process.pid, said.ids)
        wait_served(contender, log)
        yield contender, where.intakes


@contextlib.contextmanager
def nginx(directory: Path, where: workers.Where, said: Said) -> Iterator[Contender]:
    """A reverse proxy before the decode workers. Raises Unready where it is not installed, or does not serve."""
    binary = shutil.which(NGINX, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if binary is None:
        raise Unready("it is not installed: apt-get install nginx-light")
    port, configuration, log = free_port(), directory / "nginx.conf", directory / "nginx.log"
    servers = " ".join(f"server 127.0.0.1:{each};" for each in where.decode)
    configuration.write_text(NGINX_CONFIGURATION.format(directory=directory, servers=servers, port=port))
    with program(
        [binary, "-c", str(configuration), "-e", str(directory / "nginx-errors.log")], log, speaks=False
    ) as process:
        contender = Contender(NGINX, port, process.pid, said.texts)
        wait_served(contender, log)
        yield contender


@contextlib.contextmanager
def rival(peer: Peer, directory: Path, where: workers.Where, said: Said) -> Iterator[Contender]:
    """A peer in PD mode before the workers. Raises Unready where it is not installed, or does not serve."""
    home = Path(os.environ.get(PEERS, "")) / peer.package
    if not os.environ.get(PEERS) or not home.is_dir():
        raise Unready(f"{PEERS} names no directory that has {peer.package}: see bench/router/contenders.py")
    port, log = free_port(), directory / f"{peer.package}.log"
    command = [sys.executable, "-m", peer.module, *peer.flags(where), "--host=127.0.0.1", f"--port={port}"]
    command += ["--prometheus-host=127.0.0.1", f"--prometheus-port={free_port()}"]
    with program(command, log, {"PYTHONPATH": str(home)}, speaks=False) as process:
        contender = Contender(peer.name, port, process.pid, said.ids if peer.takes_ids else said.texts)
        wait_served(contender, log)
        yield contender


def wait_served(contender: Contender, log: Path) -> None:
    """Until it answers, whole and streamed, as it should. Raises Unready."""
    end_s = time.monotonic() + SERVES_S
    for stream in (False, True):
        while wrong := _tried(contender, stream=stream):
            if time.monotonic() > end_s:
                raise Unready(f"{contender.name} does not serve, but: {wrong}; {tail(log)}")
            time.sleep(0.2)


def _tried(contender: Contender, *, stream: bool) -> str:
    """What is wrong with an answer of two tokens; empty when nothing is."""
    connection = http.client.HTTPConnection("127.0.0.1", contender.port, timeout=ASK_S)
    with contextlib.closing(connection):
        try:
            content = contender.bodies(tokens=2, every_ms=1, stream=stream)[0]
            connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__} {error}"
    return "" if answer.status == 200 and ("[DONE]" in text or not stream) else f"{answer.status} {text[:300]}"


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def url(port: int) -> str:
    """Of a worker."""
    return f"http://127.0.0.1:{port}"
