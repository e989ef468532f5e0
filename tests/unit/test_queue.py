"""Places in a queue: priority and waiting are in them, and who comes again has the one it had."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from tandem.assembly import build_scheduler
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RequestId, Room, Slot
from tandem.core.inputs import Submit
from tandem.core.queue import Place, Queue
from tandem.core.requests import PRIORITY_MS, Sampling, Work

EVERY_ROLE = pytest.mark.parametrize("role", list(RoleName))


def work(number: int, attempt: int = 1, priority: int = 0, age_ms: int = 0) -> Work:
    return Work(Room(RequestId(number), attempt), (number,), 9, (), Sampling(), None, priority, "", age_ms)


@dataclass
class Request:
    place: Place


class Office:
    """A queue, and how many have come."""

    def __init__(self) -> None:
        self.queue: Queue[Request] = Queue()
        self.came = 0

    def comes(self, now_ms: int, priority: int = 0, age_ms: int = 0) -> Request:
        self.came += 1
        due_ms = work(self.came, priority=priority, age_ms=age_ms).due_ms(now_ms)
        request = Request(Place(due_ms, self.came))
        self.queue.add(request)
        return request


def test_who_comes_again_stands_where_it_stood():
    office = Office()
    before, after = office.comes(now_ms=10), office.comes(now_ms=30)
    again = office.comes(now_ms=500, age_ms=480)
    assert list(office.queue) == [before, again, after]


def test_its_priority_counts_once_however_often_it_comes():
    office = Office()
    before, after = office.comes(now_ms=0), office.comes(now_ms=2)
    again = office.comes(now_ms=PRIORITY_MS + 1 + 500, priority=1, age_ms=500)
    assert list(office.queue) == [before, again, after]


@EVERY_ROLE
def test_every_group_serves_it_before_those_who_came_after_it(role: RoleName):
    assert served(role, again=work(3, attempt=2, age_ms=480)) == [1, 3, 2]


@EVERY_ROLE
def test_who_is_new_goes_behind_those_who_wait(role: RoleName):
    assert served(role, again=work(3)) == [1, 2, 3]


def served(role: RoleName, again: Work) -> list[int]:
    """In which order three requests get pages, of which the last one came long after the others."""
    plugged = build_scheduler(Group(role, "g0", (1,)), Limits(page_size=4, num_pages=64, context=64)).role
    for now_ms, each in ((10, work(1)), (30, work(2)), (500, again)):
        peer = "p0" if role is RoleName.DECODE else None
        plugged.on_submit(Submit(replace(each, peer=peer), 60_000), now_ms)
    decision = plugged.decide(Slot(0), 500)
    return [int(one.room.rid) for one in (*decision.rows, *decision.asks)]
