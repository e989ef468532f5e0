"""What the ranks of a real cluster leave behind when it ends, and that it can be re-executed."""

import signal
from pathlib import Path

import pytest
from by_hand import ByHand, pair
from cluster import Cluster
from streams import events, stream
from waiting import eventually

from tandem.replay import compare, replay
from tandem.runtime.records import Record

FAKE = ("--model", "fake:8")
RANKS = ("p0.0", "p0.1", "d0.0", "d0.1")
SHORT = {"prompt": "a short answer", "max_tokens": 20, "ignore_eos": True}

pytestmark = pytest.mark.usefixtures("no_other_cluster")


def served(cluster: Cluster | ByHand, requests: int) -> None:
    """These many requests, to their end."""
    for _ in range(requests):
        with stream(cluster, SHORT) as response:
            assert len(list(events(response))) > 1


def by_rank(directory: Path) -> dict[str, Path]:
    """The files in a folder, by the names of their ranks, such as p0.1."""
    headings = {path: Record(path).heading for path in directory.iterdir()}
    return {f"{heading.group.name}.{heading.rank}": path for path, heading in headings.items()}


@pytest.mark.parametrize("victim", ["p0.1", "d0.0"])
def test_when_a_rank_dies_every_other_of_its_group_leaves_a_record_that_can_be_re_executed(
    victim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever is idle may be the guilty one."""
    records = tmp_path / "records"
    with pair("--model=fake:8", f"--record-dir={records}") as cluster:
        served(cluster, 3)
        cluster.kill(victim)
        eventually(cluster.dumped, "the survivor has left its dump")
        others = [name for name in RANKS if name != victim]
        for name in others:
            cluster.send(name, signal.SIGTERM)
        assert [cluster.status(name) for name in others] == [0, 0, 0]
        left, whole = by_rank(cluster.dumps), by_rank(records)
        assert [name for name in RANKS if name in left] == [name for name in others if name[0] == victim[0]]
        assert whole.keys() == set(RANKS), "what the victim has recorded is there, too"
        for path in (*left.values(), *whole.values()):
            assert path.stat().st_mode & 0o777 == 0o600
            assert replay(path, None) == 0
            told = capsys.readouterr().out
            assert "all digests equal" in told
            assert "0 ticks" not in told.splitlines()
        for name in left:
            assert compare(left[name], whole[name], None) == 0
        assert compare(whole["p0.0"], whole["p0.1"], None) == compare(whole["d0.0"], whole["d0.1"], None) == 0


def test_a_cluster_that_is_told_to_end_leaves_no_dump_and_whole_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps, records = tmp_path / "dumps", tmp_path / "records"
    with Cluster(*FAKE, f"--dump-dir={dumps}", f"--record-dir={records}") as cluster:
        served(cluster, 1)
        ticks = {name: state["tick"] for name, state in cluster.at_rest().items()}
        assert cluster.stop(signal.SIGTERM) == 0
    assert list(dumps.iterdir()) == []
    whole = by_rank(records)
    for name, path in whole.items():
        assert replay(path, None) == 0
        told = capsys.readouterr().out
        drained = [ticks[name] + 1, ticks[name] + 2]  # the tick that drains the group may not have come round
        assert any(f"{count} ticks, all digests equal" in told for count in drained), told
