"""How a cluster ends: by one signal or two, or with its supervisor; nothing is ever left behind."""

import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster import Cluster
from fake_model import expected, text_of
from streams import events, stream
from waiting import DEADLINE_S, eventually

FAKE = ("--model", "fake:8")
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
    with Cluster(*FAKE, "--drain-s", "1") as cluster, stream(cluster, LONG) as response:
        next(events(response))
        directory = run_directory(cluster)
        assert directory.is_dir()
        assert cluster.stop(number) == 0
        assert not alive(cluster.pids)
        *_, last = events(response)
        assert "error" in last, "a stream that cannot finish in time must be told, not cut"
    assert not directory.exists()


def test_where_nothing_is_open_the_drain_takes_no_time() -> None:
    with Cluster(*FAKE, "--drain-s", "600") as cluster:
        assert cluster.stop() == 0
        assert not alive(cluster.pids)


def test_after_one_signal_an_open_stream_may_finish() -> None:
    prompt = list(b"it has begun, and so it ends as it would have ended")
    with Cluster(*FAKE) as cluster:
        with stream(cluster, {"prompt": prompt, "max_tokens": 3000, "ignore_eos": True}) as response:
            first = next(events(response))["choices"][0]["text"]
            cluster.process.send_signal(signal.SIGINT)
            assert first + text_of(response) == expected(prompt, 3000)
        assert cluster.wait(DEADLINE_S) == 0
        assert not alive(cluster.pids)


def test_a_second_signal_ends_at_once_what_would_go_on() -> None:
    with Cluster(*FAKE, "--drain-s", "600") as cluster, stream(cluster, LONG) as response:
        next(events(response))

        def ended() -> bool:
            cluster.process.send_signal(signal.SIGINT)
            return cluster.process.poll() is not None

        with ThreadPoolExecutor(1) as reading:
            rest = reading.submit(lambda: list(events(response)))
            eventually(ended, "it takes no patience")
            assert "error" in rest.result()[-1], "it was not waited for"
        assert cluster.wait(DEADLINE_S) == 0
        assert not alive(cluster.pids)


def test_a_killed_supervisor_takes_everything_with_it() -> None:
    with Cluster(*FAKE) as cluster:
        pids, directory = cluster.pids, run_directory(cluster)
        cluster.process.kill()
        cluster.process.wait()
        eventually(lambda: not alive(pids), "the leashes pull")
        eventually(lambda: not directory.exists(), "the run directory is swept")
