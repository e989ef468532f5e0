"""Requests to a cluster, one after the other, in a thread."""

import itertools
import threading
from types import TracebackType
from typing import Self

from cluster import Cluster
from fake_model import complete, expected

TOKENS = 8


NUMBERS = itertools.count()
"""Of prompts, over all traffic of this process."""


class Traffic:
    """`with Traffic(cluster)`: prompts that no cache has; every answer must be right."""

    def __init__(self, cluster: Cluster, prompt_tokens: int = 400) -> None:
        self.ids: list[str] = []
        """Of the answers that have come."""
        self._cluster = cluster
        self._prompt_tokens = prompt_tokens
        self._over = threading.Event()
        self._wrong: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if self._wrong and error is None:
            raise self._wrong[0]

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                number = next(NUMBERS)
                prompt = [
                    32 + number % 90,
                    32 + number // 90 % 90,
                    *(32 + at % 90 for at in range(self._prompt_tokens)),
                ]
                answer = complete(self._cluster, prompt=prompt, max_tokens=TOKENS, ignore_eos=True)
                assert answer["choices"][0]["text"] == expected(prompt, TOKENS)
                self.ids.append(answer["id"].removeprefix("cmpl-"))
        except BaseException as error:  # noqa: BLE001  the test's thread is to raise it
            self._wrong.append(error)
