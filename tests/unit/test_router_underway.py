"""What was sent to a group counts there until it is computed, or has ended, and nothing is left behind."""

import random

from desk import OTHER_PAIR, PAIR

from router.cost import Sight
from router.index import Hashed
from router.placement import Route
from router.underway import HALF_S, USUAL_TOKENS, Underway
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Cached, Load

ROOM = Room(RequestId(1), 1)
PROMPT = Hashed(range(1600), "")
PAGES = PROMPT.pages(16)
ROUTES = [PAIR, OTHER_PAIR]


def look(underway: Underway, prompt: Hashed = PROMPT, now: float = 0.0) -> Sight:
    return underway.sight(ROUTES, prompt, {}, now)


def test_a_prompt_that_was_sent_waits_there_and_counts_as_cached():
    underway = Underway()
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    seen = look(underway)
    assert seen.prefilling["p0"].queued == 1600
    assert seen.prefilling["p0"].cached == seen.decoding["d0"].cached == 1584, "the last page is computed"
    assert seen.prefilling["p1"].queued == seen.prefilling["p1"].cached == seen.decoding["d1"].cached == 0


def test_only_what_is_not_cached_waits():
    underway = Underway()
    underway.of("p0").index.on_cached(Cached(0, 50, tuple(PAGES[:50]), ()))
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    assert look(underway).prefilling["p0"].queued == 800


def test_once_it_is_computed_only_what_the_group_says_is_cached():
    underway = Underway()
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    underway.of("p0").index.on_cached(Cached(0, 10, tuple(PAGES[:10]), ()))
    underway.computed(ROOM)
    seen = look(underway)
    assert (seen.prefilling["p0"].queued, seen.prefilling["p0"].cached) == (0, 160)
    assert seen.decoding["d0"].cached == 1584


def test_a_group_that_was_drained_of_pages_since_its_load_has_less_room():
    underway = Underway()
    underway.of("d0").on_load(Load("d0", 1, 2, 200))
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    seen = look(underway).decoding["d0"]
    assert (seen.free, seen.requests) == (1600, 4)
    underway.of("d0").on_load(Load("d0", 1, 3, 100))
    seen = look(underway).decoding["d0"]
    assert (seen.free, seen.requests) == (1600, 4)


def test_a_request_that_has_ended_takes_no_room_and_is_no_crowd():
    underway = Underway()
    underway.of("d0").on_load(Load("d0", 0, 0, 200))
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    underway.ended(ROOM)
    seen = look(underway).decoding["d0"]
    assert (seen.free, seen.requests) == (3200, 0)


def test_what_other_routers_sent_is_guessed_from_the_load():
    underway = Underway()
    underway.of("p0").on_load(Load("p0", 2, 1, 100))
    assert look(underway).prefilling["p0"].queued == 3 * USUAL_TOKENS
    underway.of("p0").on_load(Load("p0", 0, 0, 100))
    assert look(underway).prefilling["p0"].queued == 0


def test_our_own_requests_are_not_counted_twice():
    underway = Underway()
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    underway.of("p0").on_load(Load("p0", 1, 0, 100))
    assert look(underway).prefilling["p0"].queued == 1600


def test_work_is_forgotten_by_and_by():
    underway = Underway()
    underway.sent(ROOM, PAIR.heads, PROMPT, 0.0)
    underway.ended(ROOM)
    assert look(underway).prefilling["p0"].lately == 1600
    assert look(underway, now=HALF_S).prefilling["p0"].lately == 800


def test_a_group_that_starts_over_holds_nothing():
    underway = Underway()
    underway.of("p0").index.on_cached(Cached(0, 100, tuple(PAGES), ()))
    underway.of("p0").start_over()
    assert look(underway).prefilling["p0"].cached == 0


def test_who_does_not_look_hashes_nothing():
    underway = Underway(looks=False)
    prompt = Hashed(range(1600), "")
    underway.sent(ROOM, PAIR.heads, prompt, 0.0)
    assert look(underway, prompt).prefilling["p0"].cached == 0
    assert not prompt._pages


def test_after_any_attempts_nothing_is_left_behind():
    draw = random.Random(1)
    underway, going = Underway(), []
    for number in range(500):
        route = draw.choice([PAIR, OTHER_PAIR, Route(PAIR.heads[:1])])
        room = Room(RequestId(number), 1)
        underway.sent(room, route.heads, Hashed(range(draw.randrange(1, 200)), ""), float(number))
        going.append(room)
        while len(going) > 5:
            room = draw.choice(going)
            if draw.random() < 0.5:
                underway.computed(room)
            else:
                underway.ended(room)
                going.remove(room)
        if draw.random() < 0.05:
            underway.forget(draw.choice(("p0", "d0", "p1")))
    for room in going:
        underway.ended(room)
        underway.ended(room)
    for name in ("p0", "d0", "p1", "d1"):
        known = underway.of(name)
        assert (known.queued, known.computing, known.open, known.taken, known.index._coming) == (0, 0, 0, 0, {})
