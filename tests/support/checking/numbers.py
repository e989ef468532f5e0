"""Values by number: comparing and keeping states is cheap when all their parts are small integers."""

from collections.abc import Hashable
from typing import Any


class Numbers:
    """Gives each value a number, always the same one. `first` has number 0."""

    def __init__(self, first: Hashable) -> None:
        self.values: list[Any] = [first]
        self._numbers: dict[Hashable, int] = {first: 0}

    def __call__(self, value: Hashable) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number
