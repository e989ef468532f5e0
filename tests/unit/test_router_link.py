"""Rank 0 and its routers: who asked is answered, and who falls silent has their rooms aborted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from waiting import eventually

from tandem.core.ids import PageId, RequestId, Room
from tandem.core.inputs import Control, Knobs, Order, Submit
from tandem.core.journal import Journal
from tandem.core.messages import (
    PORTION,
    SILENT_S,
    Cached,
    Cancel,
    Done,
    Evicted,
    Load,
    Portion,
    Token,
    ToRouter,
    ToRouters,
    Watch,
)
from tandem.core.requests import Reason, Sampling, Work
from tandem.runtime.links import Inbox, Sockets, encode, post
from tandem.runtime.router_link import CAUSE_CHARS, RouterLink

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
        self.journal = Journal()
        self.link = RouterLink(socket, lambda: LOAD, self.journal)
        self._inboxes: list[Inbox[ToRouters]] = [
            Inbox(self._sockets.connect(zmq.DEALER, address, name, last_words=True), ToRouters)
            for name in (b"one", b"two")
        ]
        self._heard: list[list[ToRouter]] = [[], []]

    def say(self, router: int, message: Any, now_s: float = 0.0) -> list[Submit | Cancel | Control | Knobs]:
        """What the link makes of a router's message."""
        eventually(lambda: post(self._inboxes[router].socket, encode(message)))
        eventually(lambda: self.link.socket.poll(0), "the message is there")
        return list(self.link.receive(now_s))

    def frame(self, router: int) -> list[ToRouter]:
        """What a router hears at once, after the round."""
        self.link.flush()
        words: list[ToRouter] = eventually(self._inboxes[router].receive)
        return words

    def heard(self, router: int) -> ToRouter:
        """The next word."""
        if not self._heard[router]:
            self._heard[router] = self.frame(router)
        return self._heard[router].pop(0)

    def nothing(self, router: int) -> bool:
        self.link.flush()
        return not self._heard[router] and self._inboxes[router].receive() is None

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


def store(journal: Journal, *pages: int) -> tuple[int, ...]:
    """As many pages become known, one after the other; their hashes."""
    before = None if len(journal) == 0 else PageId(pages[0] - 1)
    journal.stored(before, "", bytes(8 * len(pages)), [PageId(page) for page in pages])
    return tuple(journal.everything()[-len(pages) :])


def test_who_watches_the_prefix_cache_is_told_of_it_and_nobody_else_is(routers: Routers):
    known = store(routers.journal, 0, 1)
    routers.say(0, Watch(0))
    routers.say(1, Watch())
    routers.link.tell_cached()
    assert [routers.heard(0), routers.heard(0)] == [Cached(0, 2, known, ()), LOAD]
    new = store(routers.journal, 2)
    routers.link.tell_cached()
    assert routers.heard(0) == Cached(2, 3, new, ())
    assert routers.heard(1) == LOAD
    assert routers.nothing(1)


def test_a_change_of_the_cache_is_told_before_the_token_that_comes_with_it(routers: Routers):
    routers.say(0, submit(ROOM))
    routers.say(0, Watch(0))
    known = store(routers.journal, 0)
    routers.link.tell(Token(ROOM, 0, 65))
    assert [routers.heard(0) for _ in range(3)] == [Cached(0, 1, known, ()), LOAD, Token(ROOM, 0, 65)]


def test_a_router_that_cannot_be_told_is_told_later_and_waited_for_by_nobody(routers: Routers):
    routers.say(0, Watch(0))
    routers.link.tell_cached()
    assert not routers.link.behind
    with nothing_leaves(routers):
        known = store(routers.journal, 0)
        routers.link.tell_cached()
    assert routers.link.behind
    routers.link.tell_cached()
    assert not routers.link.behind
    assert [routers.heard(0), routers.heard(0)] == [LOAD, Cached(0, 1, known, ())], "the Load left before"


def test_a_cache_is_told_in_pieces_over_several_rounds(routers: Routers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tandem.core.journal.PIECE_CHANGES", 2)
    known = store(routers.journal, *range(20))
    routers.say(0, Watch(0))
    rounds = 0
    while routers.link.behind:
        routers.link.tell_cached()
        rounds += 1
    assert rounds > 1
    told = [routers.heard(0) for _ in range(11)]
    assert told[-1] == LOAD
    assert [page for cached in told if isinstance(cached, Cached) for page in cached.stored] == list(known)


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


def test_at_the_end_of_an_epoch_every_room_hears_why(routers: Routers):
    routers.say(0, submit(ROOM))
    routers.link.close(Reason.GROUP_LOST, "x" * 1_000)
    assert routers.heard(0) == Done(ROOM, Reason.GROUP_LOST, "x" * CAUSE_CHARS)


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
def nothing_leaves(routers: Routers) -> Iterator[None]:
    """What was said before has left, and what is said now does not."""
    routers.link.flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.runtime.router_link.post", lambda *_: False)
        yield
        routers.link.flush()


def test_a_round_is_one_frame_for_each_router(routers: Routers):
    for router, room in enumerate((ROOM, OTHER)):
        routers.say(router, submit(room))
    words = [[Token(room, 0, 65), Token(room, 1, 66), Done(room, Reason.LENGTH)] for room in (ROOM, OTHER)]
    for pair in zip(*words, strict=True):
        for word in pair:
            routers.link.tell(word)
    assert [routers.frame(router) for router in (0, 1)] == words


def test_what_is_said_of_a_room_leaves_although_the_room_goes_in_the_same_round(routers: Routers):
    routers.say(0, submit(ROOM))
    routers.link.tell(Token(ROOM, 0, 65))
    routers.link.tell(Done(ROOM, Reason.LENGTH))
    routers.link.forget(ROOM)
    assert routers.frame(0) == [Token(ROOM, 0, 65), Done(ROOM, Reason.LENGTH)]


def test_a_frame_that_is_full_does_not_wait_for_the_end_of_the_round(routers: Routers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tandem.runtime.router_link.BATCH", 2)
    routers.say(0, submit(ROOM))
    routers.say(0, Watch(0))
    known = store(routers.journal, 0)
    words = [Token(ROOM, index, 65) for index in range(3)]
    for word in words:
        routers.link.tell(word)
    assert routers.frame(0) == [Cached(0, 1, known, ())], "it is older than any of the tokens"
    assert [routers.frame(0) for _ in range(2)] == [[LOAD, words[0]], words[1:]]


def test_a_frame_that_does_not_leave_costs_every_room_in_it_its_answer(routers: Routers):
    for room in (ROOM, OTHER, THIRD):
        routers.say(0, submit(room))
    with nothing_leaves(routers):
        routers.link.tell(Token(ROOM, 0, 65))
        routers.link.tell(Done(OTHER, Reason.LENGTH))
    assert routers.link.undelivered == 2
    for room in (ROOM, THIRD):
        routers.link.tell(Token(room, 1, 66))
    assert routers.frame(0) == [Token(THIRD, 1, 66)], "a text without gaps"
    assert routers.link.abandoned(1.0) == [Cancel(room, Reason.CLIENT_GONE) for room in (ROOM, OTHER)]
    assert routers.frame(0) == [Done(room, Reason.CLIENT_GONE) for room in (ROOM, OTHER)]


@pytest.mark.parametrize("word", [Token(ROOM, 1, 66), Done(ROOM, Reason.LENGTH)], ids=["token", "done"])
def test_a_router_that_misses_a_word_hears_no_more_of_the_room_but_that_it_has_ended(
    routers: Routers, word: Token | Done
):
    routers.say(0, submit(ROOM))
    routers.say(0, submit(OTHER))
    routers.link.tell(Token(ROOM, 0, 65))
    with nothing_leaves(routers):
        routers.link.tell(word)
        routers.link.flush()
        assert routers.link.abandoned(1.0) == [Cancel(ROOM, Reason.CLIENT_GONE)]
        assert routers.link.abandoned(2.0) == [], "it is aborted once"
    routers.link.tell(Token(ROOM, 2, 67))
    routers.link.tell(Done(ROOM, Reason.CLIENT_GONE))
    routers.link.tell(Token(OTHER, 0, 68))
    routers.link.flush()
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


def whole(room: Room) -> Submit:
    return Submit(submit(room).work, 60_000, whole=True)


def test_an_answer_that_is_told_whole_comes_in_portions_but_for_its_first_token(routers: Routers):
    assert routers.say(0, whole(ROOM)) == [submit(ROOM)], "no frame says how an answer is told"
    for index in range(PORTION + 4):
        routers.link.tell(Token(ROOM, index, index))
    routers.link.tell(Done(ROOM, Reason.LENGTH))
    first, rest = tuple(range(1, PORTION + 1)), tuple(range(PORTION + 1, PORTION + 4))
    told = [Token(ROOM, 0, 0), Portion(ROOM, 1, first), Portion(ROOM, PORTION + 1, rest), Done(ROOM, Reason.LENGTH)]
    assert routers.frame(0) == told


def test_what_was_kept_back_is_told_before_a_room_is_given_up(routers: Routers):
    routers.say(0, whole(ROOM))
    routers.link.tell(Token(ROOM, 1, 65))
    assert routers.nothing(0)
    routers.link.tell(Evicted(ROOM))
    assert routers.frame(0) == [Portion(ROOM, 1, (65,)), Evicted(ROOM)]
    routers.link.tell(Token(ROOM, 2, 65))
    assert (routers.nothing(0), routers.link.undelivered) == (True, 1)


def test_a_room_whose_last_portion_does_not_leave_is_not_said_to_have_ended_well(
    routers: Routers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tandem.runtime.router_link.BATCH", 1)
    routers.say(0, whole(ROOM))
    routers.link.tell(Token(ROOM, 1, 65))
    with nothing_leaves(routers):
        routers.link.tell(Done(ROOM, Reason.LENGTH))
    assert routers.link.abandoned(1.0) == [Cancel(ROOM, Reason.CLIENT_GONE)]
    assert routers.frame(0) == [Done(ROOM, Reason.CLIENT_GONE)]
    assert routers.nothing(0)


def test_the_end_of_an_epoch_tells_what_was_kept_back(routers: Routers):
    routers.say(0, whole(ROOM))
    routers.link.tell(Token(ROOM, 1, 65))
    routers.link.close(Reason.GROUP_LOST, "p0 rank 1 died")
    assert routers.frame(0) == [Portion(ROOM, 1, (65,)), Done(ROOM, Reason.GROUP_LOST, cause="p0 rank 1 died")]


def test_an_answer_that_is_streamed_waits_for_nothing(routers: Routers):
    routers.say(0, whole(ROOM))
    routers.say(0, submit(OTHER))
    for room in (ROOM, OTHER):
        routers.link.tell(Token(room, 1, 65))
    assert routers.frame(0) == [Token(OTHER, 1, 65)]
