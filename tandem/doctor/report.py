"""What the doctor says: findings, as lines for people or as one JSON object for programs."""

import enum
import sys
from collections.abc import Iterable

import msgspec


class Level(enum.Enum):
    """How bad it is. Only a failure changes the exit status."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at: what was found and, unless all is well, what to do."""

    level: Level
    name: str
    text: str


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, name, text)


def warn(name: str, text: str) -> Finding:
    """It works, but worse than it could, or not for long."""
    return Finding(Level.WARN, name, text)


def fail(name: str, text: str) -> Finding:
    """Tandem does not work like that."""
    return Finding(Level.FAIL, name, text)


def line(finding: Finding) -> str:
    """`warn clock: what was found, and what to do`."""
    return f"{finding.level.value:<4} {finding.name}: {finding.text}"


def status_of(findings: Iterable[Finding]) -> int:
    """The exit status: 1 when anything failed."""
    return int(any(finding.level is Level.FAIL for finding in findings))


class Report:
    """Prints each line as soon as it is known, or all of them at the end as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._findings: list[Finding] = []

    def add(self, findings: Iterable[Finding]) -> None:
        """Takes them one by one: each may be long in coming."""
        for finding in findings:
            self._findings.append(finding)
            if not self._as_json:
                print(line(finding), flush=True)

    def finish(self) -> int:
        """The exit status."""
        status = status_of(self._findings)
        if self._as_json:
            whole = {"ok": status == 0, "findings": self._findings}
            print(msgspec.json.encode(whole).decode(), flush=True)
        return status


def note(text: str) -> None:
    """For who watches: standard output holds findings only."""
    print(f"tandem doctor: {text}", file=sys.stderr, flush=True)
