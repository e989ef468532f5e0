"""What a rank leaves behind: enough to see what happened, for nobody else's eyes."""

import json
from pathlib import Path

import pytest

from tandem.assembly import build_rank
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId, RequestId, Room
from tandem.core.inputs import Submit
from tandem.core.rank import Rank
from tandem.core.requests import Sampling, Work
from tandem.runtime.dump import dump, dump_directory


@pytest.fixture
def rank() -> Rank:
    """It has taken one request and run some ticks."""
    group = Group(RoleName.PREFILL, "p0", (1, 1))
    made = build_rank(group, RankId(0), Epoch(5), Limits(page_size=4, num_pages=8, context=64))
    made.on(Submit(Work(Room(RequestId(1), 1), (72, 105), 1, (), Sampling(), None), 60_000), 0)
    return made


def test_it_has_the_cause_the_place_and_what_was_decided(rank: Rank, tmp_path: Path):
    content = json.loads(dump(rank, "rank 1 was silent", tmp_path).read_bytes())
    assert content["cause"] == "rank 1 was silent"
    assert (content["group"], content["rank"], content["size"], content["epoch"]) == ("p0", 0, 2, 5)
    assert content["tick"] == rank.scheduler.tick >= 0
    assert content["pages"] == {"free": 7, "owned": 1, "quarantined": 0}
    assert sum(content["queues"]) == 1
    digests = [entry["digest"] for entry in content["frames"]]
    assert digests == [f"{digest:016x}" for _, digest in rank.flight_record]
    assert len(digests) == content["tick"] + 1
    assert "72" in json.dumps(content["frames"][0]), "the prompt is in it: this is why the file is private"


def test_only_the_owner_may_read_it(rank: Rank, tmp_path: Path):
    path = dump(rank, "cause", tmp_path / "state" / "dumps")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_one_does_not_overwrite_the_other(rank: Rank, tmp_path: Path):
    paths = {dump(rank, cause, tmp_path) for cause in ("one", "two", "three")}
    assert len(paths) == 3
    assert {json.loads(path.read_bytes())["cause"] for path in paths} == {"one", "two", "three"}


def test_it_lies_where_state_lies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert dump_directory() == Path("/state/tandem/dumps")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert dump_directory() == Path("/home/me/.local/state/tandem/dumps")
