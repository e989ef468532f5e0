"""Waiting requests get what they wait for in turn, and are not tried again before there is news."""

from dataclasses import dataclass
from itertools import islice

from tandem.core.ids import RequestId, Room
from tandem.core.queue import Place, Queue
from tandem.core.turns import Turns


@dataclass
class Request:
    number: int
    needs: int = 1

    @property
    def room(self) -> Room:
        return Room(RequestId(self.number), 1)

    @property
    def place(self) -> Place:
        return Place(0, self.number)


class Office:
    """Gives out units, and notes who asked."""

    def __init__(self, units: int, *requests: Request) -> None:
        self.units, self.told, self.asked = units, 0, list[int]()
        self.queue: Queue[Request] = Queue()
        for request in requests:
            self.queue.add(request)
        self.turns = Turns()

    def _allocate(self, request: Request) -> bool:
        self.asked.append(request.number)
        if request.needs > self.units:
            return False
        self.units -= request.needs
        return True

    def served(self, most: int = 10) -> list[int]:
        served = self.turns.served(self.queue, self._allocate, lambda: (self.told,))
        return [request.number for request in islice(served, most)]


def test_nobody_overtakes_the_head_of_the_line():
    office = Office(2, Request(1), Request(2, needs=5), Request(3))
    assert office.served() == [1]
    assert len(office.queue) == 2


def test_who_was_refused_asks_again_only_when_there_is_news():
    office = Office(0, Request(1))
    assert office.served() == office.served() == []
    assert office.asked == [1]
    office.units, office.told = 1, 1
    assert office.served() == [1]


def test_another_at_the_head_asks_at_once():
    office = Office(1, Request(2, needs=5))
    assert office.served() == []
    office.queue.add(Request(1))
    assert office.served() == [1]
    assert office.asked == [2, 1], "there is no news for the one behind it"


def test_no_more_are_served_than_are_taken():
    office = Office(9, Request(1), Request(2), Request(3))
    assert office.served(most=2) == [1, 2]
    assert (office.units, len(office.queue)) == (7, 1)
    assert office.served(most=0) == []
