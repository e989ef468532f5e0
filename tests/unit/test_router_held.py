"""Pages that groups hold for each other: what a router makes of the answers of ranks."""

import msgspec
import pytest

from router.held import read
from router.ranks import Heard
from tandem.runtime.history import HeldRoom

ROOM = HeldRoom("d0", "00000000000000ab.1", "p0", 5, 1200)


def heard(body: bytes, status: int = 200) -> Heard:
    return Heard(status, body, 0, 1)


def test_what_a_rank_holds_is_read_out_of_its_state():
    state = {"ready": True, "tick": 7, "held": [ROOM]}
    assert read(heard(msgspec.json.encode(state))) == [ROOM]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (heard(b'{"ready": false, "waiting_for": "its engine", "group": "d0"}'), "not ready: waiting for its engine"),
        (heard(b'{"error": "no"}', 503), "status 503"),
        (heard(b"<html>"), "cannot be read"),
        (heard(b'{"ready": true, "held": [{"group": "d0"}]}'), "cannot be read"),
    ],
)
def test_who_tells_of_no_pages_is_named_with_the_reason(answer: Heard, why: str):
    with pytest.raises(ValueError, match=why):
        read(answer)
