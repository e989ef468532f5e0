"""The banker: who may hold pages so that everybody can finish; an exhaustive search over small states backs it."""

from functools import cache
from itertools import product

import pytest

from decode.budget import Claim, can_admit, margins, tightest_before


def test_a_margin_is_what_is_left_once_all_before_have_finished():
    assert margins(3, [Claim(2, 1), Claim(1, 4)]) == [2, 1]
    assert margins(0, [Claim(2, 1)]) == [-1]
    assert margins(5, []) == []


def test_a_page_narrows_the_margins_of_those_before():
    assert tightest_before([4, 2, 3, 1]) == [None, 4, 2, 2]
    assert tightest_before([]) == []


def test_the_first_may_always_grow():
    """Nothing is before it, so only the free pages bound it."""
    assert tightest_before(margins(1, [Claim(3, 1)])) == [None]


def test_a_newcomer_needs_its_pages_now():
    assert not can_admit(2, [], Claim(3, 0))
    assert can_admit(3, [], Claim(3, 0))


def test_a_newcomer_may_count_on_what_those_before_it_give_back():
    assert can_admit(2, [Claim(4, 1)], Claim(1, 4))
    assert not can_admit(2, [Claim(4, 1)], Claim(1, 6))


def test_a_newcomer_may_not_take_what_one_before_it_needs():
    assert not can_admit(2, [Claim(4, 2)], Claim(1, 0))
    assert can_admit(3, [Claim(4, 2)], Claim(1, 0))


State = tuple[int, tuple[Claim, ...]]
"""Free pages and the admitted requests, oldest first."""


def may_grow(free: int, claims: tuple[Claim, ...]) -> list[int]:
    """Who may take one page now, by the rule that `decode.batching` applies."""
    tightest = tightest_before(margins(free, claims))
    return [
        index
        for index, (claim, spare) in enumerate(zip(claims, tightest, strict=True))
        if claim.left and free and (spare is None or spare >= 1)
    ]


def successors(state: State) -> list[State]:
    """A request grows by a page; one that has grown to its maximum, or stops before, gives everything back."""
    free, claims = state
    after = []
    for index in may_grow(free, claims):
        grown = Claim(claims[index].held + 1, claims[index].left - 1)
        after.append((free - 1, (*claims[:index], grown, *claims[index + 1 :])))
    for index, claim in enumerate(claims):
        if not claim.left:
            after.append((free + claim.held, (*claims[:index], *claims[index + 1 :])))
    return after


@cache
def everyone_finishes(state: State) -> bool:
    """Whatever order of growth is taken, no state is reached in which somebody is left and nobody can move."""
    after = successors(state)
    return not state[1] if not after else all(everyone_finishes(each) for each in after)


@pytest.mark.parametrize("pages", [1, 2, 3, 4, 5, 6])
def test_no_order_of_allowed_growth_leaves_anyone_stuck(pages: int):
    """All ways to admit up to three requests of all sizes into a pool, and all ways to go on."""
    admitted = {(pages, ())}
    for _ in range(3):
        admitted |= {
            (free - held, (*claims, Claim(held, left)))
            for free, claims in admitted
            for held, left in product(range(1, pages + 1), range(pages + 1))
            if held + left <= pages and can_admit(free, claims, Claim(held, left))
        }
    assert len(admitted) > pages
    assert all(everyone_finishes(state) for state in admitted)


def test_without_the_rule_somebody_is_left():
    """The search can fail: two requests that each need one page of the other."""
    assert not everyone_finishes((0, (Claim(1, 1), Claim(1, 1))))
