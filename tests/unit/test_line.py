"""The line for pages: places, pauses, and leaving from anywhere."""

from decode.intake import Intake
from decode.line import Line
from tandem.core.ids import RequestId, Room
from tandem.core.queue import Place
from tandem.core.requests import Sampling, Work


def request(number: int, due_ms: int = 0) -> Intake:
    work = Work(Room(RequestId(number), 1), (1,), 1, (), Sampling(), "p0")
    return Intake(work, Place(due_ms, number))


def order(line: Line) -> list[int]:
    """Who stands where; the line is empty afterwards, but for those that pause."""
    numbers = []
    while line.head is not None:
        numbers.append(line.head.place.number)
        line.discard(line.head)
    return numbers


def test_who_is_due_first_goes_first_and_then_who_came_first():
    line = Line()
    for number, due_ms in ((1, 20), (2, 10), (3, 20), (4, 10)):
        line.add(request(number, due_ms))
    assert len(line) == 4
    assert order(line) == [2, 4, 1, 3]


def test_who_pauses_holds_nobody_up_and_comes_back_to_its_place():
    line = Line()
    first, second, third = map(request, (1, 2, 3))
    line.add(third)
    line.pause(second, 50)
    line.pause(first, 60)
    assert (line.head, line.wake_ms, len(line)) == (third, 50, 3)
    line.wake(49)
    assert line.head is third
    line.wake(50)
    assert (line.head, line.wake_ms) == (second, 60)
    line.wake(99)
    assert line.wake_ms is None
    assert order(line) == [1, 2, 3]


def test_one_may_leave_from_anywhere_and_more_than_once():
    line = Line()
    first, second, third = map(request, (1, 2, 3))
    line.add(first)
    line.add(second)
    line.pause(third, 50)
    for one in (first, third, first, third):
        line.discard(one)
    assert (len(line), line.wake_ms) == (1, None)
    assert order(line) == [2]
