"""What a router tells of requests on their way: it asks the ranks, and names those that do not answer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import msgspec
import pytest
from waiting import DEADLINE_S

from router import held, transfers
from tandem.core.config import Group, RoleName
from tandem.core.effects import Post, TellPeer
from tandem.core.events import Moved, Written
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.inputs import Kind, Submit
from tandem.core.messages import Commit
from tandem.core.plan import Emitted, Ended, Granted, Plan
from tandem.core.requests import Reason, Sampling, Work
from tandem.kv import ls
from tandem.runtime.health import NOT_FOUND, OK, Answers, Health, Reply
from tandem.runtime.history import Outlines, Tracks
from tandem.runtime.tally import Tally
from tandem.runtime.timeline import Timeline

ROOM = Room(RequestId(0xAB), 1)
ID = "00000000000000ab"


def now_us() -> int:
    return time.time_ns() // 1000


class RankDouble:
    """The HTTP port of a rank, with a real timeline behind it; its clock may be ahead."""

    def __init__(self, group: str, role: RoleName, ahead_us: int = 0) -> None:
        kinds = (Kind.BOOTSTRAPPED, Kind.TRANSFERRED)
        self.timeline = Timeline(role, kinds, 100, Tally(Group(role, group, (1,)), RankId(0)))
        self.ahead_us = ahead_us
        self.held: list[dict[str, object]] = []
        self._who = (group, 0, role.value)
        answers = Answers(lambda timeout_s: {"ready": True, "held": self.held}, self._tell, lambda timeout_s: b"")
        self._health = Health("127.0.0.1", 0, answers)
        self.address = self._health.address
        self.close = self._health.close

    def _tell(self, rid: RequestId | None, timeout_s: float, since_us: int) -> Reply:
        who = (*self._who, now_us() + self.ahead_us)
        if rid is None:
            return OK, msgspec.json.encode(Outlines(*who, self.timeline.outlines(since_us)))
        tracks = self.timeline.tracks(rid)
        return (OK, msgspec.json.encode(Tracks(*who, tracks))) if tracks else (NOT_FOUND, b"{}")


def submit(peer: str, room: Room = ROOM) -> Submit:
    return Submit(Work(room, (1,) * 8, 5, (), Sampling(), peer), 1_000)


def plan(*notes) -> Plan:
    return Plan(1, 0, (), (), notes, 0)


def play(prefill: RankDouble, decode: RankDouble, room: Room = ROOM) -> None:
    """One request, by either rank's own clock: its only layer is written, its tokens come."""
    clock_us = now_us()
    at = clock_us + prefill.ahead_us
    prefill.timeline.on_event(at, submit("d0", room))
    prefill.timeline.on_effect(at + 20, Post(1, room, "d0", RankId(0), LayerId(0), ((PageId(0), PageId(0)),)))
    prefill.timeline.on_written(1, at + 30, at + 40, at + 50)
    prefill.timeline.on_event(at + 60, Moved(1, Written.OK))
    prefill.timeline.on_effect(at + 60, TellPeer("d0", RankId(0), Commit(room, LayerId(0), 0, 8)))
    at = clock_us + decode.ahead_us
    decode.timeline.on_event(at + 5, submit("p0", room))
    decode.timeline.on_plan(at + 10, plan(Granted(room, "p0", 8, 0, (PageId(0),))))
    decode.timeline.on_event(at + 70, Commit(room, LayerId(0), 0, 8))
    decode.timeline.on_plan(at + 80, plan(Emitted(room, 0, 7)))
    decode.timeline.on_plan(at + 90, plan(Emitted(room, 1, 7), Ended(room, Reason.LENGTH)))


@pytest.fixture
def doubles(start, until, monkeypatch) -> Iterator[Callable[..., tuple]]:
    """`doubles(http={...})`: a router and its ranks' HTTP ports, some of them somewhere else.

    A busy machine may need more than a second for an answer, which is all that a router waits unless it is `patient`.
    """
    with ExitStack() as stack:

        def make(ahead_us: int = 0, http: dict[str, str] | None = None, patient: bool = True):
            for asks in (transfers, held) if patient else ():
                monkeypatch.setattr(asks, "ANSWER_S", DEADLINE_S)
            serving = start()
            ranks = [RankDouble("p0", RoleName.PREFILL), RankDouble("d0", RoleName.DECODE, ahead_us)]
            for rank in ranks:
                stack.callback(rank.close)
            addresses = {"p0": ranks[0].address, "d0": ranks[1].address, **(http or {})}
            members = [
                msgspec.structs.replace(member, http=addresses[member.group.name])
                for member in serving.double.members()
            ]
            serving.members = lambda: members
            registered = {member.group.name: member.http for member in members}

            def known() -> bool:
                workers = serving.get("/workers", admin=True)[1]["workers"]
                return {
                    worker["name"]: member["http"] for worker in workers for member in worker["members"]
                } == registered

            until(known)
            return serving, *ranks

        yield make


@pytest.fixture
def nobody() -> Iterator[str]:
    """Where something listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], str]]:
    """`stranger(said)`: where somebody says this to everyone, and hangs up."""
    with ExitStack() as stack:

        def listen(said: bytes) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                with suppress(OSError):  # the test is over
                    while True:
                        line, _ = listener.accept()
                        with line, suppress(OSError):  # who asked may have left: the next one is answered too
                            line.settimeout(DEADLINE_S)
                            line.recv(4096)
                            line.sendall(said)
                            line.shutdown(socket.SHUT_WR)
                            while line.recv(4096):
                                pass  # to close with something unread resets, and takes back what was said

            threading.Thread(target=answer, daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield listen


@pytest.mark.parametrize("name", [ID, f"cmpl-{ID}", f"chatcmpl-{ID}", f"{ID}.1"])
def test_one_request_is_told_from_all_ranks_in_order(doubles, name):
    serving, prefill, decode = doubles()
    play(prefill, decode)
    status, body = serving.get(f"/transfers/{name}", admin=True)
    assert (status, body["id"], body["silent"]) == (200, ID, {})
    (attempt,) = body["attempts"]
    assert attempt["summary"]["groups"] == {"prefill": "p0", "decode": "d0"}
    assert (attempt["summary"]["layers"], attempt["summary"]["bytes"]) == ([1, 1], 100)
    told = [(event["rank"], event["entry"].get("what", event["entry"]["kind"])) for event in attempt["events"]]
    assert told == [
        ("p0.0", "submitted"),
        ("d0.0", "submitted"),
        ("d0.0", "granted"),
        ("p0.0", "write"),
        ("d0.0", "landing"),
        ("d0.0", "decoding"),
        ("d0.0", "second token"),
        ("d0.0", "ended"),
    ]


def test_a_clock_that_is_hours_ahead_is_corrected_and_noted(doubles):
    hours_us = 7_200_000_000
    serving, prefill, decode = doubles(ahead_us=hours_us)
    play(prefill, decode)
    (attempt,) = serving.get(f"/transfers/{ID}", admin=True)[1]["attempts"]
    clocks = {rank["rank"]: rank for rank in attempt["ranks"]}
    assert clocks["d0.0"]["shifted"]
    assert abs(clocks["d0.0"]["offset_us"] - hours_us) <= clocks["d0.0"]["within_us"] + 1
    times = [event["entry"]["at_us"] for event in attempt["events"]]
    assert times == sorted(times)
    assert max(times) - min(times) < hours_us // 2


def test_all_requests_are_told_newest_first(doubles):
    serving, prefill, decode = doubles()
    rooms = [Room(RequestId(1), 1), Room(RequestId(2), 1), Room(RequestId(2), 2)]
    for room in rooms:
        play(prefill, decode, room)
    body = serving.get("/transfers", admin=True)[1]
    assert [(each["id"], each["attempt"]) for each in body["transfers"]] == [
        (f"{room.rid:016x}", room.attempt) for room in reversed(rooms)
    ]
    newest = body["transfers"][0]
    assert (newest["state"], newest["reason"], newest["tokens"]) == ("ended", "length", 2)
    assert newest["phases_ms"]["alloc"] == 0.005
    assert newest["phases_ms"]["wire"] == 0.01
    attempts = serving.get(f"/transfers/{2:016x}", admin=True)[1]["attempts"]
    assert [attempt["summary"]["attempt"] for attempt in attempts] == [1, 2]
    attempts = serving.get(f"/transfers/{2:016x}.2", admin=True)[1]["attempts"]
    assert [attempt["summary"]["attempt"] for attempt in attempts] == [2]


def test_a_rank_that_does_not_answer_is_named_and_not_waited_for(doubles, nobody, until):
    serving, prefill, decode = doubles(http={"d0": nobody}, patient=False)
    play(prefill, decode)
    silent = {"d0.0": "it did not answer within 1 s"}

    def told_by_the_other(path: str):
        body = serving.get(path, admin=True)[1]
        return body.get("silent") == silent and body

    (attempt,) = until(lambda: told_by_the_other(f"/transfers/{ID}"))["attempts"]
    assert [rank["rank"] for rank in attempt["ranks"]] == ["p0.0"]
    assert until(lambda: told_by_the_other("/transfers"))["transfers"]


@pytest.mark.parametrize(
    ("http", "why"),
    [("127.0.0.1:1", "cannot be asked at '127.0.0.1:1'"), ("", "cannot be asked at ''")],
)
def test_why_a_rank_is_not_heard_is_said(doubles, http, why):
    serving, prefill, decode = doubles(http={"d0": http})
    play(prefill, decode)
    assert why in serving.get(f"/transfers/{ID}", admin=True)[1]["silent"]["d0.0"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n{}", "cannot be read"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 5000, "cannot be read"),
        (b"HTTP/1.0 503 No\r\n\r\n{}", "status 503"),
        (b"SSH-2.0\r\n", "no HTTP"),
        (b"", "no HTTP"),
    ],
)
def test_what_no_rank_would_say_is_not_believed(doubles, stranger, said, why):
    serving, prefill, decode = doubles(http={"d0": stranger(said)})
    play(prefill, decode)
    body = serving.get(f"/transfers/{ID}", admin=True)[1]
    assert [rank["rank"] for rank in body["attempts"][0]["ranks"]] == ["p0.0"]
    assert why in body["silent"]["d0.0"]


def test_a_rank_whose_address_leads_to_another_is_not_taken_for_it(doubles, until):
    serving, prefill, decode = doubles()
    play(prefill, decode)
    swapped = [msgspec.structs.replace(member, http=prefill.address) for member in serving.members()]
    serving.members = lambda: swapped

    def swapped_is_told() -> bool:
        silent = serving.get(f"/transfers/{ID}", admin=True)[1]["silent"]
        return silent.keys() == {"d0.0"} and "p0.0 answers at its address" in silent["d0.0"]

    until(swapped_is_told)


def test_an_unknown_request_says_who_was_not_heard(doubles, nobody):
    serving, _, _ = doubles(http={"d0": nobody}, patient=False)
    status, body = serving.get(f"/transfers/{ID}", admin=True)
    assert (status, body["error"]["code"]) == (404, "unknown_request")
    assert "d0.0 (it did not answer within 1 s)" in body["error"]["message"]


@pytest.mark.parametrize("name", ["ab", f"x{ID}", f"{ID}.0", f"{ID}.", "%00", "a" * 5000])
def test_what_is_no_request_id_is_refused(serving, name):
    status, body = serving.get(f"/transfers/{name}", admin=True)
    assert (status, body["error"]["code"]) == (400, "invalid_request_id")


def test_the_port_for_clients_tells_nothing_of_it(serving):
    assert serving.get("/transfers")[0] == 404


# what groups hold for each other


def test_what_is_held_is_listed_longest_first_and_shown(doubles, capsys: pytest.CaptureFixture[str]):
    serving, prefill, decode = doubles()
    prefill.held = [{"group": "p0", "room": f"{ID}.1", "peer": "d0", "pages": 3, "age_ms": 1_500}]
    decode.held = [{"group": "d0", "room": f"{ID}.2", "peer": "p0", "pages": 9, "age_ms": 12_000}]
    assert [room["group"] for room in serving.get("/held", admin=True)[1]["rooms"]] == ["d0", "p0"]
    assert ls(serving.admin_url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["d0", f"{ID}.2", "p0", "9", "12.0", "s"]
    assert lines[2].split() == ["p0", f"{ID}.1", "d0", "3", "1.5", "s"]


def test_a_group_that_cannot_be_asked_is_named(doubles, nobody: str):
    serving, *_ = doubles(http={"d0": nobody}, patient=False)
    told = serving.get("/held", admin=True)[1]
    assert told["rooms"] == []
    assert "did not answer" in told["silent"]["d0"]
