"""`tandem bench engine`: what is asked, who goes first, and how it is told; the processes themselves run elsewhere."""

import contextlib
import sys
from pathlib import Path

import pytest
from waiting import eventually

from bench.beside import Unready, program, ready
from bench.engine import FULL, LLAMA, PEERS, US, VLLM, Case, Side, bar_of, cases, in_turns, rows_of
from bench.run import BENCHES

CASE = Case("prefill 512", ("prefill", 512), 512)


class Clocked(Side):
    """Answers with the seconds that it is given, and writes down that it was asked."""

    def __init__(self, name: str, seconds: list[float], log: list[str]) -> None:
        self.name = name
        self._seconds = iter(seconds)
        self._asked = log

    def seconds(self, case: Case) -> float:
        self._asked.append(self.name)
        return next(self._seconds)


def test_it_is_one_of_the_benchmarks() -> None:
    assert "engine" in BENCHES


def test_the_cases_are_those_of_the_design() -> None:
    assert [case.title for case in cases(FULL)] == [
        "prefill 512",
        "prefill 2048",
        *(f"decode, batch {batch} at {context} tokens" for context in (48, 540) for batch in (1, 8, 32)),
        "32 requests of 512 in, 64 out",
    ]
    assert [case.tokens for case in cases(FULL)][-1] == 32 * (512 + 64)


def test_engines_take_turns_and_their_first_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[bool] = []
    monkeypatch.setattr("bench.engine.come_to_rest", lambda: rests.append(True))
    asked: list[str] = []
    sides = [Clocked("a", [9.0, 1.0, 2.0, 4.0], asked), Clocked("b", [9.0, 8.0, 4.0, 2.0], asked)]
    assert in_turns(sides, CASE, 3) == {"a": 256.0, "b": 128.0}
    assert "".join(asked) == "abbaabba"
    assert len(rests) == len(asked)


def test_each_other_engine_is_a_bar_and_who_is_absent_says_why() -> None:
    found = {US: 300.0, "torch engine": 100.0, "transformers": 600.0}
    rows = list(rows_of(CASE, found, {VLLM: f"{PEERS} names no directory"}))
    assert [(each.reference, each.ratio, each.holds) for each in rows] == [
        ("torch engine", 3.0, True),
        ("transformers", 0.5, False),
        (VLLM, None, None),
    ]
    assert rows[-1].reason == f"{PEERS} names no directory"


def test_llama_cpp_is_a_bar_where_the_design_names_one():
    bars = [bar_of(LLAMA, case) for case in cases(FULL)]
    assert bars == ["", "", *(">= 0.8", "> 1.0", "> 1.0") * 2, ""]
    assert bar_of(VLLM, CASE) == ">= 1.0"


WORKER = """
import subprocess
from bench.engine_cases import seconds, serve_lines
class Stub:
    def prefill(self, tokens):
        print("noise")
        subprocess.run(["echo", "more noise"], check=True)
        assert tokens == 512
        return 0.25
serve_lines(Stub())
"""


def test_a_process_answers_cases_whatever_else_it_prints(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with program([sys.executable, "-c", WORKER], log, {"PYTHONPATH": str(Path.cwd())}) as process:
        ready(process, log)
        side = Side("stub", process, log)
        assert side.seconds(CASE) == 0.25
        with pytest.raises(Unready, match=r"stub has ended: AssertionError"):
            side.seconds(Case("prefill 1", ("prefill", 1), 1))
    assert "more noise" in log.read_text()


PARENT = """
import subprocess, time
print("READY", subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with program([sys.executable, "-c", PARENT], log) as process:
        child = int(ready(process, log))
        assert is_running(child)
    eventually(lambda: not is_running(child), "the child of the process has ended")


def is_running(pid: int) -> bool:
    """And no zombie that nobody has waited for yet."""
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False
