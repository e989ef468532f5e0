"""What `tandem status` makes of what a router tells of its cluster: a table, and what is wrong in sentences."""

import msgspec
import pytest
from rich.console import Console

from tandem.control import EXIT_WRONG
from tandem.runtime.history import Transfers
from tandem.runtime.overview import ClusterView, GroupView, RankView, RouterView
from tandem.status import WIDTH, drawn, status
from tandem.top import Look, rates_between

ROUTER = RouterView("ready", "", 3, 4, 1, 2, True, 0.5)
RANK = RankView(0, ready=True, epoch=7_000_001, tick=9, engine="fake", pages={"free": 5, "total": 8, "cached": 3})
SECOND = msgspec.structs.replace(RANK, rank=1)


def cluster(*ranks: RankView, router: RouterView = ROUTER, state: str = "usable", cause: str = "") -> ClusterView:
    return ClusterView(router, [GroupView("p0", "prefill", state, cause, [4, 4], 0, list(ranks))])


def lines(view: ClusterView, rates: dict[str, float] | None = None) -> list[str]:
    console = Console(width=WIDTH, record=True, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(drawn(view, rates))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_line_for_each_rank_with_what_is_the_groups_in_the_first():
    told = lines(cluster(RANK, SECOND), {"p0.0": 12.3})
    assert told[0] == "router ready: 3 open, 1 queued, 2 migrated; registry read 0.5 s ago"
    assert told[2].split()[:8] == ["group", "role", "state", "rank", "engine", "epoch", "tick", "ticks/s"]
    assert told[3].split() == [
        "p0",
        "prefill",
        "usable",
        "0",
        "fake",
        "..000001",
        "9",
        "12",
        "0",
        "0",
        "5",
        "of",
        "8",
        "3",
        "0",
    ]
    assert told[4].split()[:4] == ["1", "fake", "..000001", "9"]
    assert len(told) == 5, "nothing is wrong"


@pytest.mark.parametrize(
    ("view", "fault"),
    [
        (
            cluster(RANK, router=RouterView("not ready", "no decode group is usable", 0, 0, 0, 0, True, 0.0)),
            "the router is not ready: no decode group is usable",
        ),
        (
            cluster(RANK, router=msgspec.structs.replace(ROUTER, registry_up=False)),
            "the router cannot read the registry",
        ),
        (
            cluster(RANK, state="lost", cause="was lost: rank 1 was silent for 2.5 s"),
            "group p0 was lost: rank 1 was silent for 2.5 s",
        ),
        (cluster(RANK, cause="is paused by an operator"), "group p0 is paused by an operator"),
        (cluster(RANK, RankView(1, silent="it is not registered")), "p0 rank 1 was not heard: it is not registered"),
        (
            cluster(RankView(0, waiting_for="the other ranks of its ring", last_end="rank 1 was silent for 2.5 s")),
            "p0 rank 0 waits for the other ranks of its ring, after its epoch has ended: rank 1 was silent for 2.5 s",
        ),
        (cluster(msgspec.structs.replace(RANK, degraded="tcp is used")), "p0 rank 0 is degraded: tcp is used"),
    ],
)
def test_what_is_wrong_is_said_below_the_table(view: ClusterView, fault: str):
    assert view.faults == [fault]
    assert lines(view)[-1] == fault


def test_programs_are_told_what_is_wrong_as_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    view = cluster(RANK, state="silent", cause="is silent: its rank 0 hung up")
    monkeypatch.setattr("tandem.status.get", lambda *_: view)
    assert status("http://router", as_json=True) == EXIT_WRONG
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["faults"] == ["group p0 is silent: its rank 0 hung up"]
    assert msgspec.convert(told, ClusterView) == view


def test_a_rate_is_of_the_same_epoch_or_none():
    def look(at_s: float, **ticks: int) -> Look:
        ranks = [msgspec.structs.replace(RANK, rank=int(name[1:]), tick=tick) for name, tick in ticks.items()]
        return Look(at_s, cluster(*ranks), Transfers([], {}))

    assert rates_between(look(10.0, r0=5, r1=50), look(12.0, r0=25, r1=3, r2=9)) == {
        "p0.0": 10.0,
        "p0.1": 0.0,
        "p0.2": 0.0,
    }


def test_an_engine_that_stands_in_for_a_faster_one_is_no_fault_and_is_told_once_with_the_reason():
    slow = msgspec.structs.replace(
        RANK, engine="torch, bfloat16", engine_why="not cpu, as there is no C++ compiler", engine_fallback=True
    )
    view = cluster(slow, msgspec.structs.replace(slow, rank=1))
    assert view.faults == []
    assert lines(view)[-2:] == ["", "p0 computes with torch, bfloat16: not cpu, as there is no C++ compiler"]
    assert cluster(msgspec.structs.replace(RANK, engine="torch, float32", engine_why="as told")).remarks == []
