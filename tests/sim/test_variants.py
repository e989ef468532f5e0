"""What can be left out of a seed, that leaving it out moves nothing else, and how a failing seed is made smaller."""

import pytest
from mistakes.memory import quiet_when_anyone_is

from tandem import simulate
from tandem.core.errors import ConfigError
from tandem.sim.case import WHOLE, Variant, draw
from tandem.sim.faults import Fault
from tandem.sim.run import simulate as run_seed
from tandem.sim.shrink import shrink

SEED = 28
CASE = draw(SEED)


def test_the_seed_has_enough_to_leave_out():
    assert len(CASE.requests) > 5
    assert len(CASE.kinds) > 3


def test_leaving_requests_out_moves_no_other():
    kept = draw(SEED, Variant(only=(2, 5)))
    assert kept.requests == (CASE.requests[1], CASE.requests[4])
    assert (kept.cluster, kept.kinds, kept.heal_us) == (CASE.cluster, CASE.kinds, CASE.heal_us)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [Fault.STALLS, Fault.LOST_FACTS, Fault.SLOW_LINKS, Fault.REFUSED_VOTES])
def test_leaving_a_kind_out_moves_no_request(seed: int, kind: Fault):
    whole, kept = draw(seed), draw(seed, Variant(without=(kind,)))
    assert kept.kinds == tuple(each for each in whole.kinds if each is not kind)
    assert (kept.requests, kept.cluster, kept.heal_us) == (whole.requests, whole.cluster, whole.heal_us)


def test_other_rings_get_the_same_requests():
    kept = draw(SEED, Variant(ranks=(2, 1)))
    assert [group.size for group in kept.cluster.groups] == [2, 1] * CASE.pairs
    assert (kept.requests, kept.kinds, kept.cluster.limits) == (CASE.requests, CASE.kinds, CASE.cluster.limits)


@pytest.mark.parametrize(
    "variant",
    [
        WHOLE,
        Variant(only=()),
        Variant(only=(3, 7), without=(Fault.STALLS, Fault.ABORTS), ranks=(2, 1)),
        Variant(pairs=2),
    ],
)
def test_a_command_line_says_all_of_a_variant(variant: Variant):
    words = simulate.command(7, variant).split()
    assert words[:4] == ["tandem", "sim", "--seed", "7"]
    assert read(words[4:]) == variant


def read(words: list[str]) -> Variant:
    """As the command line is read."""
    flags = dict(zip(words[::2], words[1::2], strict=True))
    only, without, ranks = (flags.get(name, "") for name in ("--only", "--without", "--ranks"))
    return simulate.parse_variant(only, without, ranks, int(flags["--pairs"]) if "--pairs" in flags else None)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("7", "", ""), "--only is '7'"),
        (("r3,", "", ""), "--only is 'r3,'"),
        (("", "stall", ""), "'stall' is none of slow-links"),
        (("", "", "2"), "--ranks is '2'"),
        (("", "", "2,9"), "from 1 to 8"),
    ],
)
def test_a_flag_that_cannot_be_read_is_named(flags: tuple[str, str, str], named: str):
    with pytest.raises(ConfigError, match=named):
        simulate.parse_variant(*flags, pairs=None)


def test_shrinking_leaves_what_is_needed():
    def fails(variant: Variant) -> bool:
        case = draw(SEED, variant)
        numbers = [request.number for request in case.requests]
        return {2, 5} <= set(numbers) and CASE.kinds[1] in case.kinds and case.cluster.groups[1].size >= 2

    smallest = draw(SEED, shrink(SEED, WHOLE, fails, budget=1_000))
    assert [request.number for request in smallest.requests] == [2, 5]
    assert smallest.kinds == (CASE.kinds[1],)
    assert [group.size for group in smallest.cluster.groups] == [1, 2]


def test_shrinking_keeps_to_its_budget():
    runs: list[Variant] = []

    def fails(variant: Variant) -> bool:
        runs.append(variant)
        return False

    assert shrink(SEED, WHOLE, fails, budget=7) == WHOLE
    assert len(runs) == 7


def test_a_planted_mistake_shrinks_to_a_few_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    quiet_when_anyone_is(monkeypatch)
    assert simulate.run(range(1)) == 1
    command = capsys.readouterr().err.splitlines()[-1].partition("tandem sim --seed 0 ")[2]
    variant = read(command.removesuffix("--tell").split())
    assert len(draw(0, variant).requests) <= 3
    with pytest.raises(Exception, match="given them away"):
        run_seed(0, variant)


def test_processes_share_the_seeds_and_find_the_same(capsys: pytest.CaptureFixture[str]):
    hashes = []
    for jobs in (1, 2):
        assert simulate.run(range(10), show_hash=True, jobs=jobs) == 0
        hashes.append(capsys.readouterr().out.splitlines()[-1])
    assert hashes[0] == hashes[1]
