"""Findings as lines and as JSON, and the exit status that follows from them."""

import json

from tandem.doctor.report import Finding, Level, Report, fail, line, ok, status_of, warn

FINDINGS = [ok("python", "3.11.7"), warn("cpus", "1: give it two"), fail("rdma", "demanded, but there is none")]


TOLD = ["ok   python: 3.11.7", "warn cpus: 1: give it two", "fail rdma: demanded, but there is none"]


def test_a_line_begins_with_the_level_and_the_name():
    assert [line(finding) for finding in FINDINGS] == TOLD


def test_only_a_failure_changes_the_exit_status():
    assert status_of([]) == status_of(FINDINGS[:2]) == 0
    assert status_of(FINDINGS) == 1


def test_lines_are_printed_as_they_come(capsys):
    report = Report(as_json=False)
    report.add(FINDINGS[:1])
    assert capsys.readouterr().out == f"{TOLD[0]}\n"
    report.add(FINDINGS[1:])
    assert capsys.readouterr().out.splitlines() == TOLD[1:]
    assert report.finish() == 1
    assert capsys.readouterr().out == ""


def test_json_is_one_object_at_the_end(capsys):
    report = Report(as_json=True)
    report.add(FINDINGS)
    assert capsys.readouterr().out == ""
    assert report.finish() == 1
    written = capsys.readouterr().out
    assert written.count("\n") == 1
    told = json.loads(written)
    assert told["ok"] is False
    assert [Finding(Level(each["level"]), each["name"], each["text"]) for each in told["findings"]] == FINDINGS
