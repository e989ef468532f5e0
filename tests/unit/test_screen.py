"""What people read while `tandem up` runs."""

import pytest

from tandem.local.screen import Screen
from tandem.runtime.resources import LOADED_LINES, say_loaded


@pytest.mark.parametrize(
    ("url", "asks_for_a_key", "begins"),
    [
        ("http://127.0.0.1:8000", False, "Try:   curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type"),
        ("https://h:1", False, "Try:   curl --insecure https://h:1/v1/chat/completions -H 'Content-Type"),
        (
            "http://h:1",
            True,
            'Try:   curl http://h:1/v1/chat/completions -H "Authorization: Bearer $TANDEM_API_KEY" -H',
        ),
    ],
)
def test_what_is_to_be_tried_works_as_it_stands(
    url: str, asks_for_a_key: bool, begins: str, capsys: pytest.CaptureFixture[str]
):
    Screen("m", asks_for_a_key=asks_for_a_key).ready({"url": url, "admin_url": "http://a:2"})
    told = capsys.readouterr().out
    assert begins in told
    assert "Look:  http://a:2/dashboard\n" in told


class Shown:
    """In place of rich's status."""

    def __init__(self) -> None:
        self.text = ""

    def update(self, text: str) -> None:
        self.text = text


def test_weights_of_all_ranks_are_one_bar_until_they_are_loaded(monkeypatch: pytest.MonkeyPatch):
    screen, shown = Screen("m"), Shown()
    monkeypatch.setattr(screen, "_status", shown)
    screen.waiting("p0.0, d0.0 to load and register")
    assert shown.text == "waiting for p0.0, d0.0 to load and register"
    screen.loaded("p0.0", 30, 40)
    screen.loaded("d0.0", 10, 40)
    assert shown.text.startswith(f"weights {'━' * 12}{'─' * 12} 50%  waiting for p0.0, d0.0")
    screen.loaded("p0.0", 40, 40)
    screen.loaded("d0.0", 40, 40)
    assert shown.text == "waiting for p0.0, d0.0 to load and register"


def test_where_there_is_no_terminal_nothing_is_said_of_weights(capsys: pytest.CaptureFixture[str]):
    Screen("m").loaded("p0.0", 30, 40)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [1, 7, 50, 333])
def test_a_rank_says_in_a_few_lines_how_far_it_has_come(total: int, capsys: pytest.CaptureFixture[str]):
    for done in range(1, total + 1):
        say_loaded(done, total)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == min(total, LOADED_LINES)
    assert lines[-1] == f"LOADED {total} {total}"
