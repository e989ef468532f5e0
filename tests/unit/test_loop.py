"""The loop that only waits: what comes first, and what is no longer wanted."""

import os
from collections.abc import Iterator

import pytest

from tandem.local.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(3)]
    yield made
    for pipe in made:
        for fd in pipe:
            os.close(fd)


def test_what_is_to_come_first_comes_first(loop: Loop, pipes: list[tuple[int, int]]):
    heard: list[int] = []
    for number, (out, into) in enumerate(pipes):
        watch = loop.watch_first if number == 2 else loop.watch
        watch(out, lambda number=number: heard.append(number))
        os.write(into, b"x")
    loop.round()
    assert heard[0] == 2
    assert sorted(heard) == [0, 1, 2]


def test_what_is_forgotten_in_a_round_is_not_called_in_it_even_if_its_number_is_used_again(
    loop: Loop, pipes: list[tuple[int, int]]
):
    heard: list[str] = []
    (first, _), (second, _), _ = pipes

    def replace() -> None:
        loop.forget(second)
        loop.watch(second, lambda: heard.append("its successor"))

    loop.watch_first(first, replace)
    loop.watch(second, lambda: heard.append("the forgotten one"))
    for _, into in pipes:
        os.write(into, b"x")
    loop.round()
    assert heard == []
    loop.forget(first)
    loop.round()
    assert heard == ["its successor"]


def test_timers_run_in_order_unless_they_are_cancelled(loop: Loop):
    heard: list[str] = []
    loop.later(0.002, lambda: heard.append("second"))
    cancelled = loop.later(0.0, lambda: heard.append("cancelled"))
    loop.later(0.001, lambda: heard.append("first"))
    loop.cancel(cancelled)
    while len(heard) < 2:
        loop.round()
    assert heard == ["first", "second"]
