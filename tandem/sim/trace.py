"""Request traces of real services, read and cut to the size of a model that has little context.

Azure's CSV has TIMESTAMP, ContextTokens and GeneratedTokens. Mooncake's JSON lines have timestamp in milliseconds,
input_length, output_length and hash_ids: equal ids stand for equal blocks of prompts that begin alike.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path

import msgspec

from tandem.core.errors import ConfigError

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at_us: int
    prompt: int  # tokens
    answer: int
    blocks: tuple[int, ...] = ()  # ids of what the prompt consists of, if the trace tells


class _Mooncake(msgspec.Struct):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> list[Arrival]:
    """In order of time, the first at 0. Raises ConfigError."""
    read = {".csv": _azure, ".jsonl": _mooncake}.get(path.suffix)
    if read is None:
        raise ConfigError(f"--trace is {path}: give a .csv as of Azure's traces, or a .jsonl as of Mooncake's")
    try:
        arrivals = sorted(read(path), key=lambda arrival: arrival.at_us)
    except OSError as error:
        raise ConfigError(f"--trace is {path}: {error.strerror}") from error
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"--trace is {path}: a line is not as in such a trace: {error}") from error
    if not arrivals:
        raise ConfigError(f"--trace is {path}: it has no requests")
    return [replace(arrival, at_us=arrival.at_us - arrivals[0].at_us) for arrival in arrivals]


def _azure(path: Path) -> Iterator[Arrival]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            at_us = round(datetime.fromisoformat(row["TIMESTAMP"]).timestamp() * SECOND_US)
            yield Arrival(at_us, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _mooncake(path: Path) -> Iterator[Arrival]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for line in path.read_bytes().splitlines():
        row = decoder.decode(line)
        yield Arrival(row.timestamp * 1000, row.input_length, row.output_length, row.hash_ids)


def fitted(arrivals: Sequence[Arrival], context: int) -> list[Arrival]:
    """All lengths by one factor, so that the longest request just fits; none is empty."""
    longest = max(arrival.prompt + arrival.answer for arrival in arrivals)
    shrunk = [
        replace(
            arrival,
            prompt=max(1, arrival.prompt * (context - 1) // longest),
            answer=max(1, arrival.answer * (context - 1) // longest),
        )
        for arrival in arrivals
    ]
    return [replace(arrival, prompt=min(arrival.prompt, context - arrival.answer)) for arrival in shrunk]


def repeated(arrivals: Sequence[Arrival], lasting_us: int) -> Iterator[Arrival]:
    """Over and over, until the time is up. Each round goes on at the trace's own pace."""
    last_us, rest_us = arrivals[-1].at_us, math.ceil(arrivals[-1].at_us / len(arrivals))
    for begin_us in count(0, last_us + max(1, rest_us)):
        for arrival in arrivals:
            if begin_us + arrival.at_us >= lasting_us:
                return
            yield replace(arrival, at_us=begin_us + arrival.at_us)
