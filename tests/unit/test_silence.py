"""Who is taken for dead, and by whom not."""

from consensus.silence import Silence
from tandem.core.ids import RankId

ONE, TWO = RankId(1), RankId(2)


def looked(silence: Silence, first_s: float, last_s: float) -> RankId | None:
    """What a look at `last_s` finds, of somebody who has looked often since `first_s`."""
    steps = round((last_s - first_s) * 4)
    return [silence.look(first_s + step / 4) for step in range(steps + 1)][-1]


def test_who_is_not_heard_for_too_long_is_dead():
    silence = Silence(2.5)
    silence.heard(ONE, 10.0)
    silence.heard(TWO, 11.0)
    assert looked(silence, 10.0, 12.5) is None
    assert silence.look(12.6) == ONE
    silence.heard(ONE, 12.7)
    assert silence.look(13.4) is None
    assert silence.look(13.6) == TWO


def test_nobody_is_missed_who_was_never_heard():
    assert looked(Silence(2.5), 0.0, 100.0) is None


def test_it_says_when_to_look_next():
    silence = Silence(2.5)
    assert silence.due_s(10.0) == 2.5
    silence.heard(ONE, 10.0)
    silence.heard(TWO, 9.0)
    assert silence.due_s(10.0) == 1.5
    assert silence.due_s(20.0) == 0.0


def test_who_was_asleep_accuses_nobody_of_what_it_has_not_heard():
    silence = Silence(2.5)
    silence.heard(ONE, 10.0)
    assert looked(silence, 10.0, 11.0) is None
    assert silence.look(31.0) is None, "20 s were slept"
    assert looked(silence, 31.25, 32.25) is None
    assert looked(silence, 32.5, 33.0) == ONE, "now it was silent itself"
