"""A process on a leash: it hears its supervisor's lines, and ends when that is gone, whatever it is doing."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

DEADLINE_S = 30.0

CODE = """
import sys, threading
from tandem.runtime import leash

leash.GRACE_S = float(sys.argv[2])
gone = threading.Event()

def let_go():
    print("let go", flush=True)
    gone.set()

leash.leash(lambda line: print("heard", line, flush=True), let_go)
print("up", flush=True)
gone.wait()
if sys.argv[1] == "stubborn":
    threading.Event().wait()
"""


@pytest.fixture
def start() -> Iterator[Callable[[str, float], "subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []

    def run(kind: str, grace_s: float) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", CODE, kind, str(grace_s)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_whole_lines_are_heard(start: Callable[[str, float], "subprocess.Popen[str]"]):
    process = start("plain", 60.0)
    assert process.stdin is not None
    assert process.stdout is not None
    for part in ("lost p0", " rank 1\nand", " more\nnever ended"):
        process.stdin.write(part)
        process.stdin.flush()
    assert [process.stdout.readline() for _ in range(2)] == ["heard lost p0 rank 1\n", "heard and more\n"]
    process.stdin.close()
    assert process.stdout.read() == "let go\n"


def test_a_process_that_is_let_go_ends_in_its_own_way(start: Callable[[str, float], "subprocess.Popen[str]"]):
    process = start("plain", 60.0)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert (out, process.returncode) == ("let go\n", 0)


def test_one_that_does_not_end_is_ended(start: Callable[[str, float], "subprocess.Popen[str]"]):
    process = start("stubborn", 0.05)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert (out, process.returncode) == ("let go\n", 1)
