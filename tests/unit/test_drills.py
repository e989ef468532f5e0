"""A rank strikes itself down where it was told to, nowhere else, and only in a process that is there for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from waiting import eventually

from kvtransfer.transports.faulty import SWITCH
from tandem.core.config import Group, Limits, RankOptions, RoleName
from tandem.core.effects import Effect, Forget, Observe, Post, SendNext, TellPeer
from tandem.core.errors import ConfigError
from tandem.core.events import Combined, Event, Moved, Ran, Written
from tandem.core.ids import Epoch, LayerId, PageId, RankId, RequestId, Room, Slot, Tick
from tandem.core.inputs import Frame, Kind, Submit, Verdict
from tandem.core.messages import Baton, Commit, Fact, Grant, Progress
from tandem.core.requests import Sampling, Work
from tandem.runtime.drills import STRUCK, Drill, Order, Point, Points, Struck

ROOM = Room(RequestId(1), 1)
OTHER = Room(RequestId(2), 1)
SUBMIT = Submit(Work(ROOM, (1, 2), 5, (), Sampling(), "d0"), 1000)
GRANT = Grant("d0", ROOM, RankId(0), 0, (PageId(1),))
QUIET = Verdict(ROOM, Kind.QUIET)
END_S = 60.0

STRIKE = """
import sys
from pathlib import Path
from tandem.runtime.drills import Drill, Point
drill = Drill(Path(sys.argv[1]), "p0.1")
drill.at(Point.QUEUE, "not here")
drill.at(Point.COMMIT, "the last of 4 writes")
drill.at(Point.COMMIT, "not again")
print("went on")
"""


def struck_by(folder: Path, order: Order) -> subprocess.Popen[str]:
    """A process that comes to points, after it has been ordered to strike itself at one of them."""
    (folder / "p0.1").write_bytes(msgspec.json.encode(order))
    environment = {**os.environ, SWITCH: "1"}
    command = [sys.executable, "-c", STRIKE, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def told(folder: Path) -> Struck:
    path = folder / f"p0.1{STRUCK}"
    eventually(path.exists, "it says that it was struck")
    return msgspec.json.decode(path.read_bytes(), type=Struck)


def test_a_process_is_killed_where_it_was_ordered_to_and_has_said_so_before(tmp_path: Path) -> None:
    process = struck_by(tmp_path, Order(Point.COMMIT, "SIGKILL"))
    out, _ = process.communicate(timeout=END_S)
    assert (process.returncode, out) == (-signal.SIGKILL, "")
    struck = told(tmp_path)
    assert (struck.rank, struck.point, struck.signal) == ("p0.1", Point.COMMIT, "SIGKILL")
    assert (struck.pid, struck.what) == (process.pid, "the last of 4 writes")
    assert not (tmp_path / "p0.1").exists(), "its successor is not struck again"


def test_a_process_that_was_stopped_goes_on_and_is_not_struck_again(tmp_path: Path) -> None:
    process = struck_by(tmp_path, Order(Point.COMMIT, "SIGSTOP"))
    assert told(tmp_path).pid == process.pid
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=END_S)
    assert (process.returncode, out) == (0, "went on\n")


def test_nothing_happens_without_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    Drill(tmp_path, "p0.1").at(Point.QUEUE, "a request")
    assert list(tmp_path.iterdir()) == []


def test_without_the_switch_there_are_no_drills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    with pytest.raises(ConfigError, match=SWITCH):
        Drill(tmp_path, "p0.1")


# points


def points(role: RoleName, rank: int = 0) -> Points:
    """Of a rank with two layers."""
    options = RankOptions(
        cluster="c",
        group=Group(role, "g0", (2, 2)),
        rank=RankId(rank),
        model="fake:4",
        served_model_name="m",
        limits=Limits(),
        registry_url="",
        run_dir="",
    )
    return Points(options)


def baton(ballot: int | None = None, *, submit: bool = False, quiet: bool = False) -> Baton:
    frame = Frame(Tick(3), Slot(0), 0, (SUBMIT,) * submit, (QUIET,) * quiet)
    return Baton(Epoch(1), frame, ballot)


def post(ticket: int, room: Room = ROOM) -> Post:
    return Post(ticket, room, "d0", RankId(0), LayerId(ticket), ((PageId(1), PageId(2)),))


EVENTS: list[tuple[RoleName, Event, list[Point]]] = [
    (RoleName.PREFILL, SUBMIT, [Point.QUEUE]),
    (RoleName.DECODE, SUBMIT, [Point.QUEUE]),
    (RoleName.DECODE, baton(), []),
    (RoleName.DECODE, baton(1, submit=True), [Point.QUEUE, Point.VOTE]),
    (RoleName.PREFILL, baton(quiet=True), [Point.COMMITTED]),
    (RoleName.DECODE, baton(quiet=True), []),
    (RoleName.PREFILL, Combined(ROOM, Fact(quiet=True)), [Point.COMMITTED]),
    (RoleName.PREFILL, Combined(ROOM, Fact()), []),
    (RoleName.PREFILL, Combined(ROOM, None), []),
    (RoleName.DECODE, Combined(ROOM, Fact(quiet=True)), []),
    (RoleName.PREFILL, GRANT, [Point.BOOTSTRAP]),
    (RoleName.DECODE, Ran(Tick(3), ()), [Point.DECODE]),
    (RoleName.PREFILL, Ran(Tick(3), ()), []),
]


@pytest.mark.parametrize(("role", "event", "found"), EVENTS)
def test_an_event_is_a_point_before_it_is_taken(role: RoleName, event: Event, found: list[Point]) -> None:
    assert list(points(role).before(event)) == found


EFFECTS: list[tuple[RoleName, int, Effect, list[Point]]] = [
    (RoleName.DECODE, 0, SendNext(baton(1)), [Point.VOTE]),
    (RoleName.DECODE, 0, SendNext(baton()), []),
    (RoleName.DECODE, 1, SendNext(baton(1)), []),
    (RoleName.DECODE, 1, TellPeer("p0", RankId(0), GRANT), [Point.BOOTSTRAP]),
    (RoleName.DECODE, 1, Observe(ROOM, Fact(Progress.SUCCESS)), [Point.COMMITTED]),
    (RoleName.PREFILL, 1, Observe(ROOM, Fact(Progress.SUCCESS)), []),
    (RoleName.PREFILL, 1, Observe(ROOM, Fact(Progress.WAITING_FOR_INPUT)), [Point.VOTE]),
    (RoleName.PREFILL, 1, Forget(ROOM), [Point.DECODE]),
    (RoleName.DECODE, 1, Forget(ROOM), []),
]


@pytest.mark.parametrize(("role", "rank", "effect", "found"), EFFECTS)
def test_an_effect_is_a_point_once_it_is_done(role: RoleName, rank: int, effect: Effect, found: list[Point]) -> None:
    assert list(points(role, rank).after(effect)) == found


def test_prefill_is_amid_the_layers_of_a_room_and_before_its_last_commit() -> None:
    seen = points(RoleName.PREFILL)
    assert [list(seen.after(post(ticket, room))) for ticket, room in enumerate((ROOM, OTHER, ROOM))] == [
        [],
        [],
        [Point.LAYER],
    ]
    moved = [list(seen.before(Moved(ticket, Written.OK))) for ticket in (0, 1, 2)]
    assert moved == [[], [], [Point.COMMIT]]


def test_a_write_that_failed_is_before_no_commit() -> None:
    seen = points(RoleName.PREFILL)
    for ticket in (0, 1):
        list(seen.after(post(ticket)))
    assert [list(seen.before(Moved(ticket, Written.FAILED_SETTLED))) for ticket in (0, 1)] == [[], []]


def test_decode_is_amid_the_layers_of_a_room_until_its_last_commit() -> None:
    seen = points(RoleName.DECODE)
    commits = [Commit(room, LayerId(layer), 0, 9) for room, layer in ((ROOM, 0), (OTHER, 0), (ROOM, 1))]
    assert [list(seen.before(commit)) for commit in commits] == [[Point.LAYER], [Point.LAYER], [Point.COMMIT]]
    list(seen.after(Forget(OTHER)))
    assert list(seen.before(Commit(OTHER, LayerId(0), 0, 9))) == [Point.LAYER], "nothing of it is remembered"
