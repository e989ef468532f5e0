"""Traces of real services: how they are read and fitted, and clusters that they are played to."""

from itertools import islice, pairwise
from pathlib import Path

import pytest

from tandem import simulate
from tandem.core.config import RoleName
from tandem.core.errors import ConfigError
from tandem.sim import hour
from tandem.sim.hour import CONTEXT, Passed, Service, groups_of
from tandem.sim.trace import SECOND_US, Arrival, fitted, read_trace, repeated

TRACES = Path(__file__).parent / "traces"
AZURE, MOONCAKE = TRACES / "azure_conv_120.csv", TRACES / "mooncake_conversation_40.jsonl"


# traces


def test_azures_csv_is_read():
    arrivals = read_trace(AZURE)
    assert len(arrivals) == 120
    assert arrivals[0] == Arrival(0, 374, 44)
    assert all(one.at_us <= other.at_us for one, other in pairwise(arrivals))
    assert 4_000_000 < arrivals[1].at_us < 5_000_000


def test_mooncakes_json_lines_are_read():
    arrivals = read_trace(MOONCAKE)
    assert (len(arrivals), arrivals[0].prompt, arrivals[0].answer) == (40, 6758, 500)
    assert arrivals[0].blocks == tuple(range(14))
    assert arrivals[1].blocks[0] == 0, "it begins like the first one"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("trace.txt", "", "give a .csv"),
        ("trace.csv", None, "No such file"),
        ("trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "it has no requests"),
        ("trace.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n", "'GeneratedTokens'"),
        ("trace.jsonl", '{"timestamp": 0}\n', "input_length"),
    ],
)
def test_what_is_no_trace_is_said_by_name(name: str, text: str | None, said: str, tmp_path: Path):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"--trace is .*{said}"):
        read_trace(path)


@pytest.mark.parametrize("path", [AZURE, MOONCAKE], ids=lambda path: path.name)
def test_every_request_fits_and_none_is_empty(path: Path):
    read = read_trace(path)
    fit = fitted(read, 128)
    assert max(one.prompt + one.answer for one in fit) <= 128
    assert min(min(one.prompt, one.answer) for one in fit) >= 1
    longest = max(range(len(read)), key=lambda number: read[number].prompt)
    assert fit[longest].prompt == max(one.prompt for one in fit), "in proportion"


def test_a_trace_is_repeated_until_the_time_is_up():
    trace = [Arrival(0, 1, 1), Arrival(3, 2, 2), Arrival(8, 3, 3)]
    times = [arrival.at_us for arrival in repeated(trace, 30)]
    assert times == [0, 3, 8, 11, 14, 19, 22, 25]
    endless = repeated([Arrival(0, 1, 1)], 10**12)
    assert [arrival.at_us for arrival in islice(endless, 3)] == [0, 1, 2]


# clusters


@pytest.mark.parametrize(("ranks", "sizes"), [(2, [1, 1]), (8, [4, 4]), (64, [8] * 8)])
def test_ranks_are_made_pairs_of_groups(ranks: int, sizes: list[int]):
    groups = groups_of(ranks)
    assert [group.size for group in groups] == sizes
    assert [group.role for group in groups] == [RoleName.PREFILL, RoleName.DECODE] * (len(sizes) // 2)


@pytest.mark.parametrize("ranks", [0, 3, 20])
def test_ranks_that_are_left_over_are_refused(ranks: int):
    with pytest.raises(ConfigError, match=f"--ranks is {ranks}"):
        groups_of(ranks)


def played(path: Path, seconds: int, seed: int = 1, ranks: int = 64) -> Passed:
    return Service(read_trace(path), ranks, seconds, seed).play(lambda second: None)


def test_two_minutes_with_64_ranks_of_which_some_die(monkeypatch: pytest.MonkeyPatch):
    """Requests that lose a group go on elsewhere, and all end."""
    monkeypatch.setattr(hour, "CRASH_EVERY_US", 20 * SECOND_US)
    passed = played(AZURE, 120)
    assert passed.requests > 100
    assert passed.crashes == 6
    assert passed.migrated > 2
    assert passed.codes["length"] + passed.codes["stop"] > 0.9 * passed.requests


def test_the_same_trace_and_seed_give_the_same_run():
    hashes = [played(MOONCAKE, 10, seed, ranks=8).hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_prompts_that_begin_with_equal_blocks_begin_alike():
    service = Service(read_trace(MOONCAKE), 2, 1, 1)
    one, other = (tuple(service._text(arrival)) for arrival in fitted(read_trace(MOONCAKE), CONTEXT)[:2])
    shared = next(at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    assert 0 < shared < len(one)


def test_the_command_tells_how_fast_it_was(capsys: pytest.CaptureFixture[str]):
    assert simulate.play(AZURE, "2", 10, 1) == 0
    told = capsys.readouterr().out
    assert "times as fast as real time" in told
    assert "requests ended: " in told
    with pytest.raises(ConfigError, match="--ranks is '2,1'"):
        simulate.play(AZURE, "2,1", 10, 1)
