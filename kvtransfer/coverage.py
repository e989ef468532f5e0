"""Which tokens of which layers have landed: a set of ranges, not a count, so a commit that comes twice does no harm."""

from tandem.core.ids import LayerId


class Coverage:
    """Landed token ranges of one room on one decode rank. Tokens before `start` need not land: they are here."""

    def __init__(self, first: LayerId, last: LayerId, tokens: int, start: int = 0) -> None:
        self._start = start
        self._tokens = tokens
        self._ranges: dict[LayerId, list[tuple[int, int]]] = {LayerId(layer): [] for layer in range(first, last)}
        self._missing = last - first  # layers not covered yet

    def add(self, layer: LayerId, first: int, last: int) -> None:
        """Tokens [first, last) of a layer have landed. A layer that is not ours raises KeyError."""
        ranges = self._ranges[layer]
        was_whole = self._whole(ranges)
        self._ranges[layer] = merged = _merge([*ranges, (first, last)])
        if self._whole(merged) and not was_whole:
            self._missing -= 1

    def _whole(self, ranges: list[tuple[int, int]]) -> bool:
        return any(first <= self._start and last >= self._tokens for first, last in ranges)

    @property
    def complete(self) -> bool:
        """Every token of every layer is here."""
        return self._missing == 0


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
