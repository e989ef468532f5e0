"""Rank 0 and its routers: who asked is answered, and who falls silent has their rooms aborted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from waiting import eventually

from tandem.core.ids import RequestId, Room
from tandem.core.inputs import Control, Knobs, Order, Submit
from tandem.core.messages import SILENT_S, Cancel, Done, Evicted, Load, Token, ToRouter, Watch
from tandem.core.requests import Reason, Sampling, Work
from tandem.runtime.links import Inbox, Sockets, encode, post
from tandem.runtime.router_link import RouterLink

ROOM, OTHER, THIRD = (Room(RequestId(number), 1) for number in (1, 2, 3))
LOAD = Load("p0", 1, 2, 3)


def submit(room: Room) -> Submit:
    return Submit(Work(room, (1, 2), 5, (), Sampling(), "d0"), 60_000)


class Routers:
    """Two routers in front of one link, whose clock is ours."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.chmod(0o700)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: Sockets[zmq.Socket[bytes]] = Sockets(self._context, b"")
        socket, address = self._sockets.bind(zmq.ROUTER, str(run_dir), "intake")
        self.link = RouterLink(socket, lambda: LOAD)
        self._inboxes: list[Inbox[ToRouter]] = [
            Inbox(self._sockets.connect(zmq.DEALER, address, name), ToRouter) for name in (b"one", b"two")
        ]

    def say(self, router: int, message: Any, now_s: float = 0.0) -> list[Submit | Cancel | Control | Knobs]:
        """What the link makes of a router's message."""
        eventually(lambda: post(self._inboxes[router].socket, encode(message)))
        eventually(lambda: self.link.socket.poll(0), "the message is there")
        return list(self.link.receive(now_s))

    def heard(self, router: int) -> ToRouter:
        message: ToRouter = eventually(self._inboxes[router].receive)
        return message

    def nothing(self, router: int) -> bool:
        return self._inboxes[router].receive() is None

    def close(self) -> None:
        self._sockets.close()
        self._context.term()


@pytest.fixture
def routers(tmp_path: Path) -> Iterator[Routers]:
    made = Routers(tmp_path)
    yield made
    made.close()


def test_requests_come_through_and_tokens_go_to_who_asked(routers: Routers):
    assert routers.say(0, submit(ROOM)) == [submit(ROOM)]
    assert routers.say(1, submit(OTHER)) == [submit(OTHER)]
    assert routers.say(0, Cancel(ROOM, Reason.STOP)) == [Cancel(ROOM, Reason.STOP)]
    for room in (ROOM, OTHER):
        routers.link.tell(Token(room, 0, 65))
    assert [routers.heard(router) for router in (0, 1)] == [Token(ROOM, 0, 65), Token(OTHER, 0, 65)]
    assert routers.link.undelivered == 0


def test_a_watch_is_answered_with_the_load_and_goes_no_further(routers: Routers):
    assert routers.say(1, Watch()) == []
    assert routers.heard(1) == LOAD
    assert routers.nothing(0)


def test_orders_come_through_as_they_are(routers: Routers):
    for order in (Control(Order.PAUSE), Knobs(max_prefill_tokens=64)):
        assert routers.say(1, order) == [order]
    assert routers.nothing(1)
    assert routers.link.abandoned(1_000.0) == [], "they belong to no room"


@pytest.mark.parametrize("word", [Done(ROOM, Reason.LENGTH), Evicted(ROOM)], ids=["done", "evicted"])
def test_after_the_last_word_a_room_has_no_router(routers: Routers, word: Done | Evicted):
    routers.say(0, submit(ROOM))
    routers.link.tell(word)
    assert routers.heard(0) == word
    routers.link.tell(Token(ROOM, 1, 65))
    assert routers.link.undelivered == 1
    assert routers.link.abandoned(1_000.0) == []


def test_a_request_that_comes_twice_stays_with_the_router_that_was_first(routers: Routers):
    routers.say(0, submit(ROOM))
    assert routers.say(1, submit(ROOM)) == [submit(ROOM)], "the scheduler knows what to do with a duplicate"
    routers.link.tell(Token(ROOM, 0, 65))
    routers.link.tell(Done(ROOM, Reason.LENGTH))
    assert [routers.heard(0), routers.heard(0)] == [Token(ROOM, 0, 65), Done(ROOM, Reason.LENGTH)]
    assert routers.nothing(1)
    assert routers.link.abandoned(1_000.0) == [], "the room has ended: there is nothing left to abort"


def test_the_rooms_of_a_router_that_falls_silent_are_cancelled_once(routers: Routers):
    for room in (ROOM, OTHER):
        routers.say(0, submit(room), now_s=10.0)
    routers.say(1, submit(THIRD), now_s=10.0)
    assert routers.link.abandoned(10.0 + SILENT_S) == []
    routers.say(1, Watch(), now_s=10.0 + SILENT_S)
    expected = [Cancel(room, Reason.CLIENT_GONE) for room in (ROOM, OTHER)]
    assert routers.link.abandoned(10.1 + SILENT_S) == expected
    assert routers.link.abandoned(10.1 + SILENT_S) == []


def test_what_nobody_waits_for_is_counted(routers: Routers):
    routers.say(0, submit(ROOM), now_s=0.0)
    routers.link.abandoned(SILENT_S + 1)
    routers.link.tell(Token(ROOM, 0, 65))
    routers.link.tell(Done(OTHER, Reason.STOP))
    assert routers.link.undelivered == 2


@contextlib.contextmanager
def nothing_leaves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.runtime.router_link.post", lambda *_: False)
        yield


@pytest.mark.parametrize("word", [Token(ROOM, 1, 66), Done(ROOM, Reason.LENGTH)], ids=["token", "done"])
def test_a_router_that_misses_a_word_hears_no_more_of_the_room_but_that_it_has_ended(
    routers: Routers, word: Token | Done
):
    routers.say(0, submit(ROOM))
    routers.say(0, submit(OTHER))
    routers.link.tell(Token(ROOM, 0, 65))
    with nothing_leaves():
        routers.link.tell(word)
        assert routers.link.abandoned(1.0) == [Cancel(ROOM, Reason.CLIENT_GONE)]
        assert routers.link.abandoned(2.0) == [], "it is aborted once"
    routers.link.tell(Token(ROOM, 2, 67))
    routers.link.tell(Done(ROOM, Reason.CLIENT_GONE))
    routers.link.tell(Token(OTHER, 0, 68))
    assert routers.link.abandoned(3.0) == []
    assert routers.link.abandoned(4.0) == []
    routers.link.tell(Done(OTHER, Reason.LENGTH))
    expected = [Token(ROOM, 0, 65), Token(OTHER, 0, 68), Done(ROOM, Reason.CLIENT_GONE), Done(OTHER, Reason.LENGTH)]
    assert [routers.heard(0) for _ in expected] == expected
    assert routers.link.undelivered == 3


def test_a_router_that_comes_back_is_served_again(routers: Routers):
    routers.say(0, submit(ROOM), now_s=0.0)
    routers.link.abandoned(SILENT_S + 1)
    assert routers.say(0, submit(OTHER), now_s=SILENT_S + 2) == [submit(OTHER)]
    routers.link.tell(Token(OTHER, 0, 65))
    assert routers.heard(0) == Token(OTHER, 0, 65)


def test_a_forgotten_room_has_no_router(routers: Routers):
    routers.say(0, submit(ROOM))
    routers.link.forget(ROOM)
    routers.link.forget(OTHER)
    assert routers.link.abandoned(1_000.0) == []


def test_a_storm_is_taken_in_rounds(routers: Routers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tandem.runtime.router_link.MAX_TAKEN", 2)
    for room in (ROOM, OTHER, THIRD):
        eventually(lambda room=room: post(routers._inboxes[0].socket, encode(submit(room))))
    taken: list[Any] = []

    def one_round() -> bool:
        came = list(routers.link.receive(0.0))
        assert len(came) <= 2
        taken.extend(came)
        return len(taken) == 3

    eventually(one_round)
    assert taken == [submit(room) for room in (ROOM, OTHER, THIRD)]


def test_noise_is_counted_and_skipped(routers: Routers):
    eventually(lambda: post(routers._inboxes[0].socket, b"noise"))
    came = routers.say(0, submit(ROOM)) or eventually(lambda: list(routers.link.receive(0.0)))
    assert came == [submit(ROOM)]
    assert routers.link.malformed == 1
