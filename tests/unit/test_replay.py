"""`tandem replay`: a record is re-executed to the same digests, and a rank that has parted from them is named."""

from itertools import pairwise
from pathlib import Path

import pytest

from tandem.cli import run
from tandem.core.config import Group, Limits, RoleName
from tandem.core.errors import ConfigError, Divergence
from tandem.core.ids import NO_SLOT, PageId, RankId, RequestId, Room, Tick
from tandem.core.inputs import Frame, Harvest
from tandem.core.messages import Baton
from tandem.core.recorder import Recorder
from tandem.core.requests import Sampling, Work
from tandem.replay import compare, replay
from tandem.runtime.dump import dump
from tandem.runtime.records import FIRST_LINE, FORMAT, Heading, Record, begin, create
from tandem.sim.client import Client
from tandem.sim.node import FIRST
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, World

LIMITS = Limits(page_size=4, num_pages=32, context=128, chunked_prefill_size=4, max_prefill_tokens=8)
GROUPS = {
    "p0": Group(RoleName.PREFILL, "p0", (4, 4)),
    "d0": Group(RoleName.DECODE, "d0", (2, 2, 4)),
}
STRANGER = Room(RequestId(99), 1)


def made_world(requests: int = 4) -> World:
    client = Client(content_of)
    world = World(1, Cluster(tuple(GROUPS.values()), LIMITS), build_engine, client)
    for number in range(requests):
        work = Work(Room(RequestId(number + 1), 1), tuple(range(40, 50 + number)), 6, (), Sampling(), None)
        world.router.submit(work, ("p0", "d0"))
    return world


def heading(group: str, rank: int) -> Heading:
    return Heading(GROUPS[group], RankId(rank), FIRST, LIMITS)


def dumped(world: World, group: str, rank: int, directory: Path) -> Path:
    return dump(world.node(group, RankId(rank)).rank, heading(group, rank), "the test is over", directory)


@pytest.fixture
def world() -> World:
    """It has served four requests."""
    made = made_world()
    made.run()
    return made


@pytest.fixture
def guilty(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Tick]:
    """A world in which rank 1 of d0 lost a page while a request grew, as the ring has found out; and that tick."""
    world, allocations = made_world(requests=1), []
    scheduler = world.node("d0", RankId(1)).rank.scheduler
    allocate = scheduler.role.pool.allocate

    def losing(room: Room, count: int) -> tuple[PageId, ...]:
        pages = allocate(room, count)
        allocations.append(scheduler.tick)
        if len(allocations) == 2:
            allocate(STRANGER, 1)
        return pages

    monkeypatch.setattr(scheduler.role.pool, "allocate", losing)
    monkeypatch.setattr(world, "check_tick", lambda node: None)  # the oracle would be faster than the ring
    with pytest.raises(Divergence):
        world.run()
    return world, allocations[1]


def cut(path: Path, bytes_left_out: int) -> Path:
    path.write_bytes(path.read_bytes()[:-bytes_left_out])
    return path


@pytest.mark.parametrize(("group", "rank"), [("p0", 0), ("p0", 1), ("d0", 0), ("d0", 1), ("d0", 2)])
def test_every_rank_can_be_re_executed(
    world: World, group: str, rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    scheduler = world.node(group, RankId(rank)).rank.scheduler
    assert replay(dumped(world, group, rank, tmp_path), None) == 0
    told = capsys.readouterr().out
    assert f"{group} rank {rank} of {GROUPS[group].size}, epoch {FIRST}" in told
    assert f"ended after tick {scheduler.tick}: the test is over" in told
    assert f"{scheduler.tick + 1} ticks, all digests equal" in told
    assert f"after tick {scheduler.tick}: digest {scheduler.digest:016x}" in told


def test_a_record_can_be_re_executed_up_to_a_tick(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = dumped(world, "p0", 0, tmp_path)
    entries = list(Record(path).entries())
    begun = next(entry.frame.harvests[0].tick for entry in entries if entry.frame.harvests)
    assert replay(path, begun) == 0
    told = capsys.readouterr().out
    assert f"{begun + 1} ticks, all digests equal" in told
    assert f"after tick {begun}: digest {entries[begun].digest:016x}" in told
    assert f"in flight: tick {begun}, slot" in told, "its harvest comes later"
    with pytest.raises(ConfigError, match=f"--to is {len(entries)}: the record ends with tick {len(entries) - 1}"):
        replay(path, len(entries))


def test_questions_whose_outcome_is_not_in_are_told(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = dumped(world, "d0", 0, tmp_path)
    outcome = next(entry.frame.ballots[0].tick for entry in Record(path).entries() if entry.frame.ballots)
    replay(path, outcome - 1)
    assert f"open vote of baton {outcome}: prealloc r1" in capsys.readouterr().out


def test_the_rank_that_has_parted_is_named_with_its_tick(
    guilty: tuple[World, Tick], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    world, tick = guilty
    right, wrong = (dumped(world, "d0", rank, tmp_path) for rank in (0, 1))
    assert replay(right, None) == 0
    assert "all digests equal" in capsys.readouterr().out
    assert replay(wrong, None) == 1
    told = capsys.readouterr().out
    assert f"tick {tick} differs: it leads to digest" in told
    assert "frame: slot" in told
    assert "runs: " in told
    assert f"after tick {tick}: " in told


def test_two_ranks_are_compared(guilty: tuple[World, Tick], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    world, tick = guilty
    right, wrong = (dumped(world, "d0", rank, tmp_path) for rank in (0, 1))
    assert compare(wrong, right, None) == 1
    told = capsys.readouterr().out
    assert f"tick {tick} differs: the same frame has led to other digests" in told
    verdict = {line.split(":")[0]: following for line, following in pairwise(told.splitlines())}
    assert verdict[right.name] == "  re-executed up to here, all digests are equal"
    assert f"tick {tick} differs" in verdict[wrong.name]
    assert compare(wrong, right, tick - 1) == 0
    assert f"{tick} ticks in common, all equal" in capsys.readouterr().out


def test_equal_ranks_are_found_equal(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = [dumped(world, "p0", rank, tmp_path) for rank in (0, 1)]
    assert compare(*paths, None) == 0
    ticks = world.node("p0", RankId(0)).rank.scheduler.tick + 1
    assert f"{ticks} ticks in common, all equal" in capsys.readouterr().out


def test_frames_that_are_not_the_same_are_told(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """They cannot be, unless a rank got another's baton."""
    one, two = (node.rank for node in world.ranks_of(RoleName.PREFILL))
    following = Tick(one.scheduler.tick + 1)
    one.recorder.take(Frame(following, NO_SLOT, 1_000_000))
    two.recorder.take(Frame(following, NO_SLOT, 2_000_000))
    assert compare(*(dumped(world, "p0", rank, tmp_path) for rank in (0, 1)), None) == 1
    told = capsys.readouterr().out
    assert f"tick {following} differs: the frames are not the same" in told
    assert "1000000 ms" in told
    assert "2000000 ms" in told


def test_a_step_that_failed_fails_again(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rank = world.node("p0", RankId(1)).rank
    tick = Tick(rank.scheduler.tick + 1)
    bad = Frame(tick, NO_SLOT, 1_000_000, harvests=(Harvest(Tick(0), ()),))
    with pytest.raises(Exception, match="harvest of tick 0"):
        rank.on(Baton(FIRST, bad, None), 0)
    assert replay(dumped(world, "p0", 1, tmp_path), None) == 1
    told = capsys.readouterr().out
    assert f"tick {tick} cannot be re-executed: IllegalTransition: harvest of tick 0" in told
    assert "on the rank, it did not end" in told


@pytest.fixture
def late(tmp_path: Path) -> tuple[Path, Path, int]:
    """The dumps of two ranks that have dropped their first ticks, and where one begins."""
    world = made_world()
    for rank, most_bytes in ((0, 4000), (1, 5000)):
        world.node("d0", RankId(rank)).rank.recorder = Recorder(most_bytes)
    world.run()
    one, two = (dumped(world, "d0", rank, tmp_path) for rank in (0, 1))
    return one, two, next(Record(one).entries()).frame.tick


def test_a_record_without_its_beginning_cannot_be_re_executed(late: tuple[Path, Path, int]):
    path, _, first_tick = late
    assert first_tick > 0
    with pytest.raises(ConfigError, match=f"it begins with tick {first_tick}, so it cannot be re-executed"):
        replay(path, None)


def test_records_without_their_beginning_can_be_compared(
    late: tuple[Path, Path, int], capsys: pytest.CaptureFixture[str]
):
    one, two, first_tick = late
    assert next(Record(two).entries()).frame.tick < first_tick
    assert compare(one, two, None) == compare(two, one, None) == 0
    in_common = len(list(Record(one).entries()))
    assert capsys.readouterr().out.count(f"{in_common} ticks in common, all equal") == 2
    with pytest.raises(ConfigError, match="no tick in common"):
        compare(one, two, 0)


def test_records_of_two_rings_are_not_compared(world: World, tmp_path: Path):
    paths = [dumped(world, group, 0, tmp_path) for group in ("p0", "d0")]
    with pytest.raises(ConfigError, match="not of one ring: group is"):
        compare(*paths, None)


def test_a_file_that_was_cut_off_is_re_executed_as_far_as_it_goes(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = cut(dumped(world, "p0", 0, tmp_path), 3)
    ticks = world.node("p0", RankId(0)).rank.scheduler.tick
    assert replay(path, None) == 0
    told = capsys.readouterr().out
    assert "what follows is cut off" in told
    assert f"{ticks} ticks, all digests equal" in told


def test_what_is_no_record_is_refused_by_name(world: World, tmp_path: Path):
    path = dumped(world, "p0", 0, tmp_path)
    whole = path.read_bytes()
    other = FORMAT + b"1\n"
    faults = {
        "this is not a flight record": b"hello",
        "this is not a flight record ": b"",
        "it was written with protocol 1, this is protocol": other + whole.removeprefix(FIRST_LINE),
        "it is cut off before its first tick": whole[: len(FIRST_LINE) + 9],
        "its heading is malformed": FIRST_LINE + b"\x00\x00\x00\x02\xff\xff" + whole,
        "what follows tick": whole + b"\x00\x00\x00\x02\xff\xff",
    }
    for fault, content in faults.items():
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=fault.strip()):
            replay(path, None)
    with pytest.raises(ConfigError, match="it cannot be read, No such file"):
        replay(tmp_path / "missing", None)


def test_a_record_with_a_tick_left_out_is_malformed(world: World, tmp_path: Path):
    recorded = world.node("p0", RankId(0)).rank.recorder.since(Tick(-1))
    path = tmp_path / "gap"
    with create(path) as file:
        begin(file, heading("p0", 0))
        for each in (recorded[0], recorded[2]):
            file.write(len(each.entry).to_bytes(4, "big") + each.entry)
    with pytest.raises(ConfigError, match="tick 2 follows tick 0"):
        replay(path, None)


def test_a_rank_that_never_ticked_has_nothing_to_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    world = made_world()
    assert replay(dumped(world, "d0", 2, tmp_path), None) == 0
    assert "0 ticks, all digests equal" in capsys.readouterr().out


def test_the_command_says_by_its_status_what_it_found(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = [str(dumped(world, "p0", rank, tmp_path)) for rank in (0, 1)]
    assert run(["replay", paths[0]]) == 0
    assert run(["replay", paths[0], "--to", "2"]) == 0
    assert "3 ticks, all digests equal" in capsys.readouterr().out
    assert run(["replay", *paths, "--to", "2"]) == 0
    assert "3 ticks in common, all equal" in capsys.readouterr().out
    assert run(["replay", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
