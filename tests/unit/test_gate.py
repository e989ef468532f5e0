"""A gate lets in until it is shut, and then waits for those inside."""

import threading

import pytest

from kvtransfer.gate import Gate


def test_it_shuts_at_once_when_nobody_is_inside() -> None:
    gate = Gate()
    assert gate.enter()
    gate.leave()
    assert gate.close(0.0)
    assert not gate.enter()


def test_closing_waits_for_those_inside() -> None:
    gate = Gate()
    assert gate.enter()
    assert not gate.close(0.0)
    assert gate.shut
    leaving = threading.Thread(target=gate.leave)
    leaving.start()
    assert gate.close(60.0)
    leaving.join()


def test_nobody_leaves_who_has_not_come_in() -> None:
    with pytest.raises(AssertionError):
        Gate().leave()
