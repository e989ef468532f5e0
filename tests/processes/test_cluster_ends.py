"""How a cluster ends: by a signal, by a rank's death, by its supervisor's; nothing is ever left behind."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster
from streams import events, stream
from waiting import eventually

FAKE = ("--model", "fake:8")
LEAVES_S = 5.0
LONG = {"prompt": "a long answer", "max_tokens": 8000, "ignore_eos": True}

pytestmark = pytest.mark.usefixtures("no_other_cluster")


def run_directory(cluster: Cluster) -> Path:
    """Where this cluster's sockets are: others may run on this machine."""
    words = Path(f"/proc/{cluster.pids['p0.0']}/cmdline").read_text().split("\0")
    (path,) = [word.removeprefix("--run-dir=") for word in words if word.startswith("--run-dir=")]
    return Path(path)


def alive(pids: dict[str, int]) -> dict[str, int]:
    """Those that still run; a zombie has ended."""
    return {name: pid for name, pid in pids.items() if Path(f"/proc/{pid}/stat").exists() and not zombie(pid)}


def zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_process_and_leaves_nothing(number: signal.Signals) -> None:
    with Cluster(*FAKE) as cluster, stream(cluster, LONG) as response:
        next(events(response))
        directory = run_directory(cluster)
        assert directory.is_dir()
        begun_s = time.monotonic()
        assert cluster.stop(number) == 0
        took_s = time.monotonic() - begun_s
        assert not alive(cluster.pids)
        *_, last = events(response)
        assert "error" in last, "an open stream must be told, not cut"
    assert not directory.exists()
    assert took_s < LEAVES_S


@pytest.mark.parametrize("victim", ["p0.0", "p0.1", "d0.0", "d0.1"])
def test_a_dead_rank_is_named_and_open_requests_are_told(victim: str) -> None:
    with Cluster(*FAKE) as cluster, stream(cluster, LONG) as response:
        next(events(response))
        eventually(lambda: cluster.state("d0.0")["running"] == 1, "the request decodes")
        os.kill(cluster.pids[victim], signal.SIGKILL)
        assert cluster.wait(LEAVES_S) == 1
        group, _, rank = victim.partition(".")
        assert f"{group} rank {rank}" in cluster.stderr()
        assert "SIGKILL" in cluster.stderr()
        *_, last = events(response)
        assert "error" in last, "the client must get an honest error, not a cut or a false end"
        eventually(lambda: not alive(cluster.pids), "every process has ended", LEAVES_S)


def test_a_killed_supervisor_takes_everything_with_it() -> None:
    with Cluster(*FAKE) as cluster:
        pids, directory = cluster.pids, run_directory(cluster)
        cluster.process.kill()
        cluster.process.wait()
        eventually(lambda: not alive(pids), "the leashes pull", 10)
        eventually(lambda: not directory.exists(), "the run directory is swept", 10)
