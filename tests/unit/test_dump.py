"""What a rank leaves behind: enough to see what happened and to re-execute it, for nobody else's eyes."""

import os
from pathlib import Path

import pytest
from full_disk import full_disk

from tandem.assembly import build_rank
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Launch
from tandem.core.ids import NO_SLOT, Epoch, RankId, RequestId, Room, Tick
from tandem.core.inputs import Frame, Submit
from tandem.core.rank import Rank
from tandem.core.recorder import Entry
from tandem.core.requests import Sampling, Work
from tandem.runtime import dump as module
from tandem.runtime.dump import dump, dump_directory
from tandem.runtime.records import Heading, Record

GROUP = Group(RoleName.PREFILL, "p0", (1, 1))
LIMITS = Limits(page_size=4, num_pages=8, context=64)
HEADING = Heading(GROUP, RankId(0), Epoch(5), LIMITS)
ROOM = Room(RequestId(1), 1)


@pytest.fixture
def rank() -> Rank:
    """It has taken one request and launched it."""
    made = build_rank(GROUP, RankId(0), Epoch(5), LIMITS)
    effects = made.on(Submit(Work(ROOM, (72, 105), 1, (), Sampling(), None), 60_000), 0)
    assert any(isinstance(effect, Launch) for effect in effects)
    return made


def test_it_has_the_cause_the_place_and_what_was_decided(rank: Rank, tmp_path: Path):
    record = Record(dump(rank, HEADING, "rank 1 was silent", tmp_path))
    heading, ending = record.heading, record.heading.ending
    assert (heading.group, heading.rank, heading.epoch, heading.limits) == (GROUP, 0, 5, LIMITS)
    assert ending is not None
    assert ending.cause == "rank 1 was silent"
    assert ending.tick == rank.scheduler.tick >= 0
    assert ending.awaiting == rank.awaiting() == f"ran({ending.in_hand[-1].tick})"
    assert ending.pages == rank.scheduler.role.pool.counts()
    assert ending.queues == tuple(rank.scheduler.role.lengths())
    assert [row.room for plan in ending.in_hand for row in plan.rows] == [ROOM]
    assert ending.facts == tuple(rank.facts.items())


def test_it_has_every_frame_and_the_digest_it_led_to(rank: Rank, tmp_path: Path):
    entries = list(Record(dump(rank, HEADING, "cause", tmp_path)).entries())
    recorded = rank.recorder.since(Tick(-1))
    assert [(entry.frame.tick, entry.digest) for entry in entries] == [(each.tick, each.digest) for each in recorded]
    assert len(entries) == rank.scheduler.tick + 1
    (arrival,) = entries[0].frame.arrivals
    assert isinstance(arrival, Submit)
    assert arrival.work.prompt == (72, 105), "the prompt is in it: this is why the file is private"


def test_a_frame_whose_step_did_not_end_comes_last_without_a_digest(rank: Rank, tmp_path: Path):
    following = Frame(Tick(rank.scheduler.tick + 1), NO_SLOT, 9)
    rank.recorder.take(following)
    *_, last = Record(dump(rank, HEADING, "cause", tmp_path)).entries()
    assert last == Entry(following, None)


def test_only_the_owner_may_read_it(rank: Rank, tmp_path: Path):
    mask = os.umask(0)
    try:
        path = dump(rank, HEADING, "cause", tmp_path / "state" / "dumps")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_one_does_not_overwrite_the_other(rank: Rank, tmp_path: Path):
    paths = {dump(rank, HEADING, cause, tmp_path) for cause in ("one", "two", "three")}
    endings = [Record(path).heading.ending for path in paths]
    assert {ending.cause for ending in endings if ending is not None} == {"one", "two", "three"}


def test_only_the_latest_are_kept(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "KEPT", 2)
    paths = []
    for moment, cause in enumerate(("one", "two", "three")):
        paths.append(dump(rank, HEADING, cause, tmp_path))
        os.utime(paths[-1], (moment, moment))
    assert sorted(tmp_path.iterdir()) == sorted(paths[1:])


def test_a_full_disk_is_told_and_leaves_nothing_behind(rank: Rank, tmp_path: Path):
    with full_disk(), pytest.raises(OSError, match="too large"):
        dump(rank, HEADING, "cause", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_lies_where_state_lies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert dump_directory() == Path("/state/tandem/dumps")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert dump_directory() == Path("/home/me/.local/state/tandem/dumps")
