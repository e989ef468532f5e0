"""What follows for open requests, and for the groups that they are on, from what is heard of a group."""

from collections.abc import Sequence

import msgspec
import pytest
from desk import OTHER_PAIR, PAIR, Clock, Letters

from router.attempt import Attempt
from router.dispatch import Dispatch
from router.exchange import Exchange
from router.membership import Membership, State
from router.placement import Route
from router.reader import Reader
from router.stream import Stream
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Cancel, Done, Evicted, Load, ToGroup, Watch
from tandem.core.requests import Reason, Sampling, Work

WORK = Work(Room(RequestId(7), 1), (1, 2), 100, (), Sampling(), None)


class Links:
    """Fits `Links`: what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ToGroup]] = []

    def connect(self, group: str, address: str) -> None:
        self.send(group, Watch())

    def send(self, group: str, message: ToGroup) -> bool:
        self.sent.append((group, message))
        return True

    def drop(self, group: str) -> None:
        raise AssertionError(group)


def taking(routes: Sequence[Route], links: Links, clock: Clock) -> Dispatch:
    """All of their groups take requests."""
    dispatch = Dispatch(Membership("m"), links, clock, 600.0)
    heads = [head for route in routes for head in route.heads]
    dispatch.on_members([msgspec.structs.replace(head, intake=f"ipc://{head.group.name}", epoch=1) for head in heads])
    for head in heads:
        dispatch.on_message(head.group.name, Load(head.group.name, 0, 0, 1))
    return dispatch


def opened(dispatch: Dispatch) -> Exchange:
    stream = Stream(Attempt(WORK, dispatch.place(WORK.prompt, WORK.salt)), 257, Letters(), ())
    return dispatch.requests.open(stream, deadline=700.0, reader=Reader(streaming=False))


def test_a_healthy_group_is_not_lost_with_the_request_that_its_peer_took_along():
    """It answers a Cancel with a Done of the same reason, which must not read as its own end."""
    links = Links()
    dispatch = taking([PAIR], links, Clock())
    exchange = opened(dispatch)
    dispatch.on_message("p0", Done(WORK.room, Reason.GROUP_LOST))
    assert exchange.end is not None
    for name, message in links.sent:
        if isinstance(message, Cancel) and name == "d0":
            dispatch.on_message("d0", Done(message.room, message.reason))
    states = {watched.group.name: dispatch.membership.state(watched) for watched in dispatch.membership.groups()}
    assert states == {"p0": State.LOST, "d0": State.USABLE}


# hand-overs that fail


@pytest.mark.parametrize("reason", [Reason.TRANSFER_FAILED, Reason.KV_CHECKSUM])
def test_after_a_hand_over_that_failed_it_goes_on_where_neither_group_had_a_part_in_it(reason: Reason):
    dispatch = taking([PAIR, OTHER_PAIR], Links(), Clock())
    exchange = opened(dispatch)
    assert exchange.attempt.route.names == ("p0", "d0")
    dispatch.on_message("p0", Done(exchange.attempt.room, reason))
    assert exchange.attempt.route.names == ("p1", "d1")


def test_of_a_group_that_is_shared_by_all_routes_another_peer_is_tried():
    dispatch = taking([PAIR, Route((PAIR.heads[0], OTHER_PAIR.heads[1]))], Links(), Clock())
    exchange, ways = opened(dispatch), []
    for _ in range(2):
        dispatch.on_message("p0", Done(exchange.attempt.room, Reason.TRANSFER_FAILED))
        ways.append(exchange.attempt.route.names)
    assert ways == [("p0", "d1"), ("p0", "d1")], "both are in doubt now, and the last one knows it"


def test_where_there_is_one_pair_it_is_tried_again():
    dispatch = taking([PAIR], Links(), Clock())
    exchange = opened(dispatch)
    dispatch.on_message("d0", Done(exchange.attempt.room, Reason.TRANSFER_FAILED))
    assert (exchange.attempt.route.names, exchange.attempt.room.attempt) == (("p0", "d0"), 2)


def test_who_had_to_make_room_stays():
    dispatch = taking([PAIR, OTHER_PAIR], Links(), Clock())
    exchange = opened(dispatch)
    dispatch.on_message("d0", Evicted(exchange.attempt.room))
    assert exchange.attempt.route.names == ("p0", "d0")
