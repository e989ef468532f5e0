"""What the ranks of a real cluster leave behind when it ends, and that it can be re-executed."""

import os
import re
import signal
from pathlib import Path

import pytest
from cluster import Cluster
from streams import events, stream

from tandem.replay import compare, replay
from tandem.runtime.records import Record

FAKE = ("--model", "fake:8")
SHORT = {"prompt": "a short answer", "max_tokens": 20, "ignore_eos": True}

pytestmark = pytest.mark.usefixtures("no_other_cluster")


def served(cluster: Cluster, requests: int) -> None:
    """These many requests, to their end."""
    for _ in range(requests):
        with stream(cluster, SHORT) as response:
            assert len(list(events(response))) > 1


def by_rank(directory: Path, group: str = "") -> dict[str, Path]:
    """The files of each group's first epoch, or of one group's, by the names of their ranks, such as p0.1."""
    headings = {path: Record(path).heading for path in directory.iterdir()}
    wanted = {path: heading for path, heading in headings.items() if heading.group.name.startswith(group)}
    firsts: dict[str, int] = {}
    for heading in wanted.values():
        firsts[heading.group.name] = min(heading.epoch, firsts.get(heading.group.name, heading.epoch))
    return {
        f"{heading.group.name}.{heading.rank}": path
        for path, heading in wanted.items()
        if heading.epoch == firsts[heading.group.name]
    }


@pytest.mark.parametrize("victim", ["p0.1", "d0.0"])
def test_when_a_rank_dies_every_other_of_its_group_leaves_a_record_that_can_be_re_executed(
    victim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks are started again and go on in the same folders: the epoch that has ended is the first one there."""
    dumps, records = tmp_path / "dumps", tmp_path / "records"
    with Cluster(*FAKE, f"--dump-dir={dumps}", f"--record-dir={records}") as cluster:
        served(cluster, 3)
        os.kill(cluster.pids[victim], signal.SIGKILL)
        cluster.serves_again()
    group = victim.partition(".")[0]
    ranks = {f"{group}.0", f"{group}.1"}
    left, whole = by_rank(dumps, group), by_rank(records, group)
    assert left.keys() == ranks - {victim}
    assert whole.keys() == ranks, "what the victim has recorded is there, too"
    for path in (*left.values(), *whole.values()):
        assert path.stat().st_mode & 0o777 == 0o600
        assert replay(path, None) == 0
        told = capsys.readouterr().out
        assert "all digests equal" in told
        assert "0 ticks" not in told.splitlines()
    for name in left:
        assert compare(left[name], whole[name], None) == 0
    assert compare(whole[f"{group}.0"], whole[f"{group}.1"], None) == 0


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
        told = re.search(r"^(\d+) ticks, all digests equal", capsys.readouterr().out, re.MULTILINE)
        assert told is not None
        assert int(told[1]) > ticks[name], "and perhaps a few more, while it ended"
