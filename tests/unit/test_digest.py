"""The digest sees everything in which two ranks could differ."""

import msgspec

from tandem.core.digest import advance
from tandem.core.ids import PageId, RequestId, Room, Slot, Tick
from tandem.core.inputs import FirstToken, Frame
from tandem.core.plan import Ask, Question, Row
from tandem.core.requests import Sampling

ROOM, OTHER = Room(RequestId(1), 1), Room(RequestId(1), 2)
FRAME = Frame(Tick(3), Slot(0), 10)
ROW = Row(ROOM, (5, 6), 0, (PageId(4),), True, Sampling())
ASK = Ask(Question.PREALLOC, ROOM, "p0")
SAME = {"digest": 9, "frame": FRAME, "rows": [ROW], "asks": [ASK], "given": [PageId(4)], "counts": (3, 1)}


def test_equal_inputs_give_equal_digests():
    assert advance(**SAME) == advance(**SAME)
    assert 0 <= advance(**SAME) < 2**64


def test_every_difference_changes_it():
    replace = msgspec.structs.replace
    different = [
        {"digest": 8},
        {"frame": replace(FRAME, now_ms=11)},
        {"frame": replace(FRAME, arrivals=(FirstToken(ROOM, 7),))},
        {"rows": []},
        {"rows": [replace(ROW, room=OTHER)]},
        {"rows": [replace(ROW, start=1)]},
        {"rows": [replace(ROW, tokens=(5,))]},
        {"rows": [replace(ROW, pages=(PageId(4), PageId(5)))]},
        {"rows": [ROW, ROW]},
        {"asks": []},
        {"given": [PageId(5)]},
        {"given": []},
        {"counts": (3, 2)},
    ]
    digests = [advance(**SAME), *(advance(**{**SAME, **change}) for change in different)]
    assert len(set(digests)) == len(digests)


def test_page_numbers_matter_in_their_order():
    one = advance(**{**SAME, "given": [PageId(1), PageId(2)]})
    assert one != advance(**{**SAME, "given": [PageId(2), PageId(1)]})
