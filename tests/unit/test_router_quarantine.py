"""Whose prompts are refused, and for how long."""

import pytest
from desk import head

from router.quarantine import CRASHES_MAX, FURTHER, PROMPTS_MAX, QUARANTINE_S, Losses, Quarantine
from tandem.core.config import RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.requests import Sampling, Work

GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0, seed=1)


def work(*prompt: int, sampling: Sampling = GREEDY, max_tokens: int = 9) -> Work:
    return Work(Room(RequestId(1), 1), prompt, max_tokens, (), sampling, None)


def test_an_equal_prompt_is_refused_for_ten_minutes():
    quarantine = Quarantine()
    assert quarantine.left_s(work(1, 2), 0.0) == 0
    quarantine.put(work(1, 2), 0.0)
    assert quarantine.left_s(work(1, 2, max_tokens=1), 1.0) == QUARANTINE_S - 1
    assert quarantine.left_s(work(1, 2), QUARANTINE_S) == 0
    assert len(quarantine) == 0, "nothing is kept for longer"


def test_no_other_prompt_is_equal():
    quarantine = Quarantine()
    quarantine.put(work(1, 2), 0.0)
    for other in (work(1), work(2, 1), work(1, 2, 3), work(258), work(1, 2, sampling=SAMPLED)):
        assert quarantine.left_s(other, 0.0) == 0


def test_sampled_requests_are_not_remembered():
    quarantine = Quarantine()
    quarantine.put(work(1, 2, sampling=SAMPLED), 0.0)
    assert len(quarantine) == 0


def test_a_prompt_that_does_it_again_is_refused_anew():
    quarantine = Quarantine()
    quarantine.put(work(1), 0.0)
    quarantine.put(work(2), 1.0)
    quarantine.put(work(1), 2.0)
    assert quarantine.left_s(work(1), QUARANTINE_S + 1) == 1
    assert quarantine.left_s(work(2), QUARANTINE_S + 1) == 0


def test_the_table_is_bounded_and_the_oldest_goes():
    quarantine = Quarantine()
    for token in range(PROMPTS_MAX + 1):
        quarantine.put(work(token), float(token))
    assert len(quarantine) == PROMPTS_MAX
    now = float(PROMPTS_MAX)
    assert [quarantine.left_s(work(token), 600.0) > 0 for token in (0, 1, PROMPTS_MAX)] == [False, True, True]
    assert quarantine.left_s(work(PROMPTS_MAX), now) == QUARANTINE_S


def test_so_many_crashes_make_a_request_suspicious():
    losses = Losses()
    for number in range(CRASHES_MAX):
        assert not losses.suspicious
        losses.add(f"d{number}", (head(RoleName.DECODE, f"d{number}"),), 0, crashed=True)
    assert losses.suspicious
    assert losses.crashed == [f"d{number}" for number in range(CRASHES_MAX)]


def test_losses_that_somebody_wanted_count_but_do_not_accuse():
    losses = Losses()
    for number in range(9):
        losses.add(f"d{number}", (head(RoleName.DECODE, f"d{number}"),), 0, crashed=False)
    assert (losses.count, losses.suspicious) == (9, False)


@pytest.mark.parametrize(("further", "suspicious"), [(0, True), (FURTHER - 1, True), (FURTHER, False)])
def test_who_came_clearly_further_before_the_next_crash_is_not_the_cause(further: int, suspicious: bool):
    losses = Losses()
    for number, tokens in enumerate((100, 100 + further)):
        losses.add(f"d{number}", (head(RoleName.DECODE, f"d{number}"),), tokens, crashed=True)
    assert losses.suspicious is suspicious
    assert losses.count == 2, "the budget of losses is another matter"
