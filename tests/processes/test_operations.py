"""Commands for who operates a cluster, against a real one: what they print, and the status that they end with."""

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from cluster import Cluster
from fake_model import FAKE, complete
from streams import events, stream
from traces import get
from waiting import DEADLINE_S, eventually

from router.cluster import PAUSED
from tandem import cli

GROUPS = {"p0": "prefill", "d0": "decode"}
RANKS = {"p0.0", "p0.1", "d0.0", "d0.1"}
LONG = {"prompt": [65] * 40, "max_tokens": 6000, "ignore_eos": True}


@pytest.fixture
def cluster(cluster_of: Callable[..., Cluster]) -> Cluster:
    return cluster_of(*FAKE, "--prefill-pp", "2", "--decode-pp", "2", "--no-prefix-cache")


@pytest.fixture
def says(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, which ends with this status."""

    def run(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        assert cli.run([*words, "--admin-url", cluster.admin_url]) == status, capsys.readouterr()
        output = capsys.readouterr().out
        assert isinstance(output, str)
        return output

    return run


def group_of(cluster: Cluster, name: str) -> dict[str, Any]:
    """As the router sees it."""
    return next(group for group in json.loads(get(cluster, "/cluster"))["groups"] if group["name"] == name)


@contextlib.contextmanager
def standing_still(cluster: Cluster) -> Iterator[None]:
    """A request that decodes when its group is paused: it ends when its client leaves, and not before."""
    with stream(cluster, LONG) as response:
        text, more = "", events(response)
        while len(text) < 2:  # the second token comes from decode
            text += next(more)["choices"][0]["text"]
        assert cli.run(["control", "pause", "--group", "d0", "--admin-url", cluster.admin_url]) == 0
        eventually(lambda: all(cluster.state(name)["paused"] for name in ("d0.0", "d0.1")), "the group is paused")
        yield


def drain_beside(cluster: Cluster, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", "tandem.cli", "drain", *words, "--admin-url", cluster.admin_url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def told(text: str) -> Any:
    """One line of JSON, and nothing else."""
    (line,) = text.splitlines()
    return json.loads(line)


def test_status_shows_every_group_and_rank(says: Callable[..., str]):
    text = says("status")
    assert text.startswith("router ready: ")
    table = [line.split() for line in text.splitlines()[3:]]
    assert [row[:3] for row in table if row[0] in GROUPS] == [[name, GROUPS[name], "usable"] for name in ("d0", "p0")]
    assert len(table) == len(RANKS)
    seen = told(says("status", "--json"))
    assert seen["router"]["state"] == "ready"
    assert {f"{group['name']}.{rank['rank']}" for group in seen["groups"] for rank in group["ranks"]} == RANKS
    assert all(rank["ready"] and rank["pages"]["total"] for group in seen["groups"] for rank in group["ranks"])


def test_top_shows_the_newest_requests_once_in_a_pipe(cluster: Cluster, says: Callable[..., str]):
    request_id = complete(cluster, prompt=[65] * 40, max_tokens=3, ignore_eos=True)["id"].removeprefix("cmpl-")
    text = says("top", "--once", "--interval", "0.2")
    assert "ticks/s" in text
    assert any(line.startswith(f"{request_id}.1 ") and "(length)" in line for line in text.splitlines())
    seen = told(says("top", "--once", "--interval", "0.2", "--json"))
    assert seen["ticks_per_s"].keys() == RANKS
    assert seen["requests"][0]["id"] == request_id


def shown(terminal: int) -> bytes:
    """What a command writes next to its terminal."""
    ready, _, _ = select.select([terminal], [], [], DEADLINE_S)
    assert ready, "it writes nothing"
    return os.read(terminal, 1 << 16)


def test_top_changes_a_terminal_in_place_until_ctrl_c(cluster: Cluster):
    terminal, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    command = [sys.executable, "-P", "-m", "tandem.cli", "top", "--interval", "0.2", "--admin-url", cluster.admin_url]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=its,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    os.close(its)
    seen = b""
    while seen.count(b"ticks/s") < 3:
        seen += shown(terminal)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the other end is closed
        while shown(terminal):
            pass
    assert process.wait(DEADLINE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    os.close(terminal)
    assert all(name.encode() in seen for name in GROUPS)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_top_in_a_pipe_asks_for_once(cluster: Cluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]):
    assert cli.run(["top", *words, "--admin-url", cluster.admin_url]) == 2
    assert "give --once" in capsys.readouterr().err


def test_a_drain_counts_what_is_left_and_ends_when_nothing_is(cluster: Cluster, says: Callable[..., str]):
    with standing_still(cluster):
        draining = drain_beside(cluster, "d0")
        assert draining.stdout is not None
        assert draining.stdout.readline().startswith("group d0 draining: 1 requests left, 1 running, 0 waiting")
        seen = told(says("status", "--json", status=1))
        assert {group["name"]: group["state"] for group in seen["groups"]}["d0"] == "draining"
        fault = f"group d0 is draining and {PAUSED}"
        eventually(lambda: fault in told(says("status", "--json", status=1))["faults"], "both are said")
    assert draining.wait(DEADLINE_S) == 0
    assert draining.stdout.read().splitlines()[-1].startswith("group d0 is drained, after ")
    draining.stdout.close()
    says("control", "resume", "--group", "d0")
    eventually(lambda: group_of(cluster, "d0")["state"] == "usable", "the group takes requests again")


def test_a_drain_that_does_not_end_in_time_says_what_is_left(cluster: Cluster, says: Callable[..., str]):
    with standing_still(cluster):
        end = told(says("drain", "d0", "--deadline-s", "0", "--json", status=1))
        assert (end["drained"], end["left"]) == (False, 1)
        assert "1 requests are left after 0 s" in end["cause"]
    assert told(says("control", "resume", "--group", "d0", "--json")) == {"group": "d0", "order": "resume"}
    eventually(lambda: group_of(cluster, "d0")["state"] == "usable", "the group takes requests again")


def test_what_a_request_and_the_groups_hold_is_told_in_json(cluster: Cluster, says: Callable[..., str]):
    request_id = complete(cluster, prompt=[65] * 40, max_tokens=3, ignore_eos=True)["id"]
    cluster.at_rest()
    assert told(says("trace", request_id, "--json"))["id"] == request_id.removeprefix("cmpl-")
    nothing = {"rooms": [], "silent": {}}
    eventually(lambda: told(says("kv", "ls", "--json")) == nothing, "no peer's word is awaited any more")


def test_a_trace_of_an_answer_has_all_of_its_choices(cluster: Cluster, says: Callable[..., str]):
    answer = complete(cluster, prompt=[65] * 40, max_tokens=3, ignore_eos=True, n=2)
    cluster.at_rest()
    first = int(answer["id"].removeprefix("cmpl-"), 16)
    ids = [f"{first + number:016x}" for number in range(2)]
    titles = [line for line in says("trace", answer["id"]).splitlines() if line.startswith("request ")]
    assert [title.split()[1].rstrip(":") for title in titles] == ids
    one = told(says("trace", f"{ids[0]}.1", "--json"))
    assert [attempt["summary"]["id"] for attempt in one["attempts"]] == ids[:1], "an attempt is of one choice"


def test_the_shell_completes_commands_and_flags():
    def completed(words: str) -> list[str]:
        environment = {"_TANDEM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        found = subprocess.run(
            [sys.executable, "-m", "tandem.cli"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        return found.stdout.split()

    assert completed("tandem st") == ["status"]
    assert "--admin-url" in completed("tandem drain --admin")
