"""Any process of a local cluster may die, or hang: it is started again, and the cluster serves as before."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from cluster import Cluster
from fake_model import complete, expected, text_of
from streams import events, stream
from waiting import eventually

FAKE = ("--model", "fake:8")
RANKS = ["p0.0", "p0.1", "d0.0", "d0.1"]
LONG = {"prompt": "a long answer", "max_tokens": 8000, "ignore_eos": True}
PROMPT = list(b"whoever was started again computes the same")

pytestmark = pytest.mark.usefixtures("no_other_cluster")


def kill(cluster: Cluster, victim: str, number: signal.Signals = signal.SIGKILL) -> int:
    """Its pid; returns when the cluster serves again without it."""
    pid = cluster.pids[victim]
    os.kill(pid, number)
    cluster.serves_again()
    assert cluster.pids[victim] != pid
    return pid


def serves_right(cluster: Cluster) -> None:
    answer = complete(cluster, prompt=PROMPT, max_tokens=40, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(PROMPT, 40)
    cluster.at_rest()


@pytest.mark.parametrize("victim", ["d0.0", "d0.1"])
def test_a_killed_decode_rank_is_named_and_started_again_and_its_requests_are_told(victim: str) -> None:
    with Cluster(*FAKE) as cluster, stream(cluster, LONG) as response:
        next(events(response))
        eventually(lambda: cluster.state("d0.0")["running"] == 1, "the request decodes")
        only_its_group_is_touched_by_a_kill(cluster, victim)
        *_, last = events(response)
        assert "error" in last, "no other pair is left: an honest error, not a cut or a false end"
        serves_right(cluster)


@pytest.mark.parametrize("victim", ["p0.0", "p0.1"])
def test_a_killed_prefill_rank_is_started_again_and_who_decodes_does_not_notice(victim: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True}
    with Cluster(*FAKE) as cluster, stream(cluster, body) as response:
        first = next(events(response))["choices"][0]["text"]
        eventually(lambda: cluster.state("d0.0")["running"] == 1, "the request decodes")
        only_its_group_is_touched_by_a_kill(cluster, victim)
        assert first + text_of(response) == expected(PROMPT, 3000)
        serves_right(cluster)


def only_its_group_is_touched_by_a_kill(cluster: Cluster, victim: str) -> None:
    before = cluster.pids
    pid = kill(cluster, victim)
    group, _, rank = victim.partition(".")
    assert f"{group} rank {rank} (pid {pid}) was killed by SIGKILL; starting it again\n" in cluster.stderr()
    others = [name for name in before if not name.startswith(f"{group}.")]
    assert [cluster.pids[name] for name in others] == [before[name] for name in others]


def test_a_killed_router_comes_back_on_its_ports() -> None:
    with Cluster(*FAKE) as cluster:
        before, urls = cluster.pids, (cluster.url, cluster.admin_url)
        with stream(cluster, LONG) as response:
            next(events(response))
            kill(cluster, "router")
            finished = []
            with contextlib.suppress(ConnectionError):
                finished = [event for event in events(response) if event["choices"][0]["finish_reason"]]
            assert not finished, "what was cut must not look finished"
        assert (cluster.url, cluster.admin_url) == urls
        assert [cluster.pids[name] for name in RANKS] == [before[name] for name in RANKS]
        serves_right(cluster)


def test_a_killed_registry_comes_back_empty_and_whoever_is_there_registers_again() -> None:
    with Cluster(*FAKE) as cluster:
        before = cluster.pids
        kill(cluster, "registry")
        assert {name: pid for name, pid in cluster.pids.items() if before[name] != pid}.keys() == {"registry"}
        serves_right(cluster)
        kill(cluster, "d0.1")
        serves_right(cluster)


@pytest.mark.parametrize("victim", ["p0.1", "router", "registry"])
def test_a_process_that_hangs_is_killed_and_started_again(victim: str) -> None:
    with Cluster(*FAKE, "--timer-scale", "0.5") as cluster:
        pid = kill(cluster, victim, signal.SIGSTOP)
        assert f"(pid {pid}) has not answered for 5 s: killing it\n" in cluster.stderr()
        assert f"(pid {pid}) was killed by SIGKILL; starting it again\n" in cluster.stderr()
        serves_right(cluster)


def test_a_rank_that_cannot_start_is_tried_less_and_less_often_and_serves_when_it_can(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with Cluster(*FAKE, "--dump-dir", str(dumps)) as cluster:
        dumps.rename(tmp_path / "away")
        dumps.touch()
        os.kill(cluster.pids["d0.1"], signal.SIGKILL)
        for wait in ("in 1 s", "in 2 s"):
            eventually(lambda wait=wait: any(wait in line for line in said_of(cluster, "d0 rank 1")), wait)
        assert any("exited with status 2: tandem: --dump-dir is" in line for line in said_of(cluster, "d0 rank 1"))
        dumps.unlink()
        (tmp_path / "away").rename(dumps)
        cluster.serves_again()
        serves_right(cluster)


def said_of(cluster: Cluster, title: str) -> list[str]:
    return [line for line in cluster.stderr().splitlines() if line.startswith("tandem: ") and title in line]
