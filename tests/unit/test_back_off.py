"""When a process that has ended is started again."""

import pytest

from tandem.local.back_off import LONGEST_S, YOUNG_S, BackOff

OLD, YOUNG = YOUNG_S, YOUNG_S - 0.1


def test_whoever_ends_for_the_first_time_is_started_at_once():
    assert BackOff().after(0.0) == 0
    assert BackOff().after(OLD) == 0


def test_whoever_keeps_ending_young_waits_longer_and_longer_up_to_a_bound():
    back_off = BackOff()
    assert [back_off.after(YOUNG) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    for _ in range(2000):
        assert back_off.after(0.0) == LONGEST_S


@pytest.mark.parametrize("young", [1, 3, 10])
def test_whoever_has_lived_long_is_forgiven(young: int):
    back_off = BackOff()
    for _ in range(young):
        back_off.after(YOUNG)
    assert [back_off.after(lived_s) for lived_s in (OLD, YOUNG, YOUNG)] == [0, 1, 2]
