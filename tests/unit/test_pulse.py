"""What a rank tells of itself with its heartbeats: how long nothing has changed, and whose fault that may be."""

import pytest

from consensus.pulse import LOOP, LOOP_S, Pulse
from tandem.core.ids import Tick


def test_it_tells_how_long_the_same_is_awaited():
    pulse = Pulse(100.0)
    pulse.move(Tick(7), "return(7)", 101.0)
    pulse.move(Tick(7), "return(7)", 103.0)
    assert pulse.report(104.5) == (7, "return(7)", 3500)
    pulse.move(Tick(8), "return(8)", 105.0)
    assert pulse.report(105.25) == (8, "return(8)", 250)


def test_arrivals_are_ticks_but_nobody_gets_on_by_them():
    pulse = Pulse(0.0)
    for tick in range(5):
        pulse.move(Tick(tick), "return(0)", float(tick))
    assert pulse.report(5.0) == (4, "return(0)", 5000)


def test_a_rank_without_work_has_not_moved_either():
    pulse = Pulse(0.0)
    pulse.move(Tick(3), "", 1.0)
    pulse.move(Tick(3), "", 2.0)
    assert pulse.report(2.5) == (3, "", 2500)


def test_an_engine_that_gets_on_by_a_layer_is_slow_and_not_hung():
    pulse = Pulse(0.0)
    for second in range(30):
        pulse.move(Tick(2), "ran(2)", float(second))
    pulse.layer_ran(29.0)
    assert pulse.report(29.5) == (2, "ran(2)", 500)


def test_a_tick_loop_that_makes_no_rounds_hangs_whatever_it_waited_for():
    pulse = Pulse(0.0)
    pulse.move(Tick(2), "", 1.0)
    assert pulse.report(1.0 + LOOP_S) == (2, "", 4000)
    assert pulse.report(6.0) == (2, LOOP, 5000)


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
