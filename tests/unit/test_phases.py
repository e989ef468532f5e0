"""The phases of `tandem up`."""

from tandem.local.phases import NEXT, UP, Input, Phase

ORDER = list(Phase)


def test_phases_only_go_forward():
    assert all(ORDER.index(after) >= ORDER.index(before) for (before, _), after in NEXT.items())


def test_every_phase_can_be_reached_and_every_input_is_used():
    assert set(NEXT.values()) == set(Phase) - {Phase.STARTING}
    assert {happened for _, happened in NEXT} == set(Input)


def test_a_signal_is_heard_in_every_phase_and_a_second_one_leaves_no_time():
    ends = {phase: NEXT[phase, Input.STOP] for phase in Phase}
    assert ends[Phase.SERVING] is Phase.DRAINING, "open requests may finish"
    assert not [phase for phase in Phase if phase not in UP and ends[phase] not in (Phase.ENDING, Phase.KILLING)]


def test_only_a_cluster_that_serves_may_take_all_the_time_it_wants():
    timed = {phase for phase, happened in NEXT if happened is Input.LATE}
    assert set(Phase) - timed == {Phase.SERVING, Phase.KILLING}


def test_a_process_that_ends_is_the_end_of_all_only_while_the_cluster_starts():
    assert [phase for phase, happened in NEXT if happened is Input.LOST] == [Phase.STARTING]
