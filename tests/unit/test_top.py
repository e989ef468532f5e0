"""`tandem top`: Ctrl-C is heard, wherever it comes."""

import io
import signal
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console
from rich.text import Text

import tandem.top
from tandem.runtime.history import Transfers
from tandem.runtime.overview import ClusterView, RouterView
from tandem.top import Look, top

ROUNDS = 5
LOOK = Look(1.0, ClusterView(RouterView("ready", "", 0, 0, 0, 0, True, 0.0), []), Transfers([], {}))


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def while_a_generator_is_taken_apart() -> None:
    """As when a table has been drawn. Python drops what is raised there."""

    def cells() -> Iterator[int]:
        try:
            yield 1
        finally:
            press()

    next(cells())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Top on a terminal, with what happens when it draws and when it looks the third time; and its status."""

    def run(draws: Callable[[], None], looks: Callable[[], None]) -> int:
        looked, drawn = 0, 0

        def look(url: str, key: str) -> Look:
            nonlocal looked
            looked += 1
            assert looked < ROUNDS, "it was not heard"
            if looked == 3:
                looks()
            return LOOK

        def screen(now: Look, rates: dict[str, float]) -> Text:
            nonlocal drawn
            drawn += 1
            if drawn == 2:
                draws()
            return Text("drawn")

        monkeypatch.setattr(tandem.top, "console_of", lambda: Console(file=io.StringIO(), force_terminal=True))
        monkeypatch.setattr(tandem.top, "look", look)
        monkeypatch.setattr(tandem.top, "screen", screen)
        return top("http://127.0.0.1:1", "", 0.0, once=False, as_json=False)

    return run


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("draws", "looks"), [(press, nothing), (nothing, press), (while_a_generator_is_taken_apart, nothing)]
)
def test_ctrl_c_ends_it_wherever_it_comes(
    draws: Callable[[], None], looks: Callable[[], None], run: Callable[..., int]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    try:
        assert run(draws, looks) == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "it is as it was"
    finally:
        signal.signal(signal.SIGINT, before)
