"""What the scheduler benchmark steps: every request runs in every tick, and grows."""

from bench.scheduler import Running, medians, prefix_rows, vllm_row


def test_every_request_has_a_row_in_every_step():
    running = Running(70)
    for _ in range(40):
        running.step_us()
        assert [row.room for row in running.plan.rows] == running.rooms
    assert {len(row.pages) for row in running.plan.rows} == {11}


def test_agreement_is_measured_without_a_step():
    running = Running(3)
    before = running.scheduler.tick, running.scheduler.digest
    assert running.agreement_us() > 0
    assert (running.scheduler.tick, running.scheduler.digest) == before


def test_the_first_turn_only_warms_up():
    counts = {"one": 0, "other": 0}

    def counted(name: str) -> float:
        counts[name] += 1
        return float(counts[name])

    found = medians({name: lambda name=name: counted(name) for name in counts}, repeats=3, inner=2)
    assert counts == {"one": 8, "other": 8}
    assert found == {"one": 5.0, "other": 5.0}


def test_what_cannot_be_compared_says_why():
    assert vllm_row(1.0).holds is None
    assert vllm_row(1.0).reason


def test_a_prefix_is_matched_or_the_row_says_that_it_cannot_be():
    (found,) = prefix_rows(repeats=1, seed=1)
    assert (found.ratio is None) == (found.holds is None) == bool(found.reason)
