"""Says at the end what was explored, also when other processes did it."""

import pytest
from checking.setting import EXPLORED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line about each model."""
    passed = terminalreporter.stats.get("passed", [])
    lines = [said for report in passed for name, said in report.user_properties if name == EXPLORED]
    if lines:
        terminalreporter.section("explored")
        terminalreporter.write_line("\n".join(lines))
