"""What a rank tells of itself with its heartbeats: how long nothing has changed, and whose fault that may be."""

import pytest

from consensus.pulse import LOOP, LOOP_S, Pulse
from tandem.core.ids import Tick


def told(pulse: Pulse, since_s: float, at_s: float) -> tuple[Tick, str, int]:
    """What it reports then, having been asked twice a second until then."""
    while since_s < at_s:
        pulse.report(since_s)
        since_s += 0.5
    return pulse.report(at_s)


def test_it_tells_how_long_the_same_is_awaited():
    pulse = Pulse(100.0)
    pulse.move(Tick(7), "return(7)", 101.0)
    pulse.move(Tick(7), "return(7)", 103.0)
    assert told(pulse, 100.0, 104.5) == (7, "return(7)", 3500)
    pulse.move(Tick(8), "return(8)", 105.0)
    assert pulse.report(105.25) == (8, "return(8)", 250)


def test_arrivals_are_ticks_but_nobody_gets_on_by_them():
    pulse = Pulse(0.0)
    for tick in range(5):
        pulse.move(Tick(tick), "return(0)", float(tick))
    assert told(pulse, 0.0, 5.0) == (4, "return(0)", 5000)


def test_a_rank_without_work_has_not_moved_either():
    pulse = Pulse(0.0)
    pulse.move(Tick(3), "", 1.0)
    pulse.move(Tick(3), "", 2.0)
    assert told(pulse, 0.0, 2.5) == (3, "", 2500)


def test_an_engine_that_gets_on_by_a_layer_is_slow_and_not_hung():
    pulse = Pulse(0.0)
    for second in range(30):
        pulse.move(Tick(2), "ran(2)", float(second))
    pulse.layer_ran(29.0)
    assert told(pulse, 0.0, 29.5) == (2, "ran(2)", 500)


def test_a_tick_loop_that_makes_no_rounds_hangs_whatever_it_waited_for():
    pulse = Pulse(0.0)
    pulse.move(Tick(2), "", 1.0)
    assert told(pulse, 0.0, 1.0 + LOOP_S) == (2, "", 4000)
    assert told(pulse, 1.0 + LOOP_S, 6.0) == (2, LOOP, 5000)


@pytest.mark.parametrize("loop_first", [False, True])
def test_who_slept_with_all_of_its_machine_has_not_been_stuck_meanwhile(loop_first: bool):
    """Whichever of its threads wakes first. What it had waited before counts on."""
    pulse = Pulse(0.0)
    pulse.move(Tick(4), "return(4)", 1.0)
    pulse.layer_ran(1.0)
    assert told(pulse, 0.0, 3.0) == (4, "return(4)", 2000)
    if loop_first:
        pulse.move(Tick(4), "return(4)", 14.0)
    assert pulse.report(14.0) == (4, "return(4)", 2000)
    assert told(pulse, 14.0, 15.0) == (4, "return(4)", 3000)
    pulse.move(Tick(5), "return(5)", 15.5)
    assert pulse.report(15.5) == (5, "return(5)", 0)
    assert pulse.usual_s < 1.0, "nor did a tick take so long"


def test_a_tick_loop_that_hangs_after_a_nap_is_found_all_the_same():
    pulse = Pulse(0.0)
    pulse.move(Tick(2), "", 1.0)
    told(pulse, 0.0, 2.0)
    assert told(pulse, 50.0, 55.0) == (2, LOOP, 6000)


def test_what_is_usual_follows_the_waits_and_nothing_else():
    pulse = Pulse(0.0)
    assert pulse.usual_s == 0.0
    for tick in range(200):
        pulse.move(Tick(tick), f"return({tick})", tick * 0.5)
    assert pulse.usual_s == pytest.approx(0.5, rel=0.01)
    pulse.move(Tick(200), "", 100.0)
    usual_s = pulse.usual_s
    pulse.move(Tick(201), "return(201)", 5000.0)
    assert pulse.usual_s == usual_s, "a night without work is no wait"
