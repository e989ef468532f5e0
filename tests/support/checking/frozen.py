"""A machine's state as a value: frozen for comparing and keeping, thawed for going on.

Equal states freeze to equal tuples, whatever led to them: containers keep their order, and an object or a container
that is reached twice is frozen once and referred to after that, so thawing restores what is shared. An unknown type
raises.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

import msgspec

from tandem.core.ids import Room

Frozen = Hashable


class Count(int):
    """A tick that knows it is one, also after arithmetic: so that all of them can be shifted by the same amount."""

    def __add__(self, other: int) -> "Count":
        return Count(int(self) + other)

    def __sub__(self, other: int) -> "Count":
        return Count(int(self) - other)


class _Seen:
    """Marks a reference to what was frozen before, by its number."""


_VALUES: set[type] = {int, str, bool, bytes, type(None), Count}
"""Types whose instances are their own frozen form. Those that are found out to be are added."""
_CONTAINERS = (dict, list, deque, OrderedDict)
"""Types of containers that change, so that it matters who shares one."""
_FIELDS: dict[type, tuple[str, ...]] = {}
"""The names of the attributes of each class that has been frozen."""
_SLOTTED: set[type] = set()
"""Those of them that keep their attributes in slots."""


def freeze(thing: object) -> Frozen:
    """The value of an object and of all that it reaches. Raises TypeError for what is not known to be plain state."""
    return thing if type(thing) in _VALUES else _Freezer().walk(thing)


class _Freezer:
    """Nearly all the time of a search is spent here and in thawing: hence few calls, each doing much."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def walk(self, thing: Any) -> Frozen:
        """Everything but values that are known to be values."""
        kind = type(thing)
        names = _FIELDS.get(kind)
        if names is None and kind not in _CONTAINERS:
            return self._unshared(thing, kind)
        known = len(self._numbers)
        number = self._numbers.setdefault(id(thing), known)
        if number != known:
            return (_Seen, number)
        if names is None:
            return self._container(thing, kind)
        walk = self.walk
        if kind in _SLOTTED:
            parts = [getattr(thing, name) for name in names]
        else:
            fields = vars(thing)
            if tuple(fields) != names:
                raise TypeError(f"{thing} has other attributes than the first of its class: {tuple(fields)}")
            parts = list(fields.values())
        return (kind, *[part if type(part) in _VALUES else walk(part) for part in parts])

    def _container(self, thing: Any, kind: type) -> Frozen:
        if not thing and kind is not deque:
            return (kind,)
        if kind is list:
            return (list, *self._all(thing))
        if kind is deque:
            return (deque, thing.maxlen, *self._all(thing))
        return (kind, *self._all([part for pair in thing.items() for part in pair]))

    def _unshared(self, thing: Any, kind: type) -> Frozen:
        """A tuple of some class, a value of a new type, or the first object of its class."""
        if issubclass(kind, tuple):
            return (kind, *self._all(thing))
        if _is_value(kind):
            _VALUES.add(kind)
            return thing  # type: ignore[no-any-return]
        _learn(kind, thing)
        return self.walk(thing)

    def _all(self, parts: Any) -> list[Frozen]:
        walk = self.walk
        return [part if type(part) in _VALUES else walk(part) for part in parts]


def thaw(frozen: Frozen) -> Any:
    """A new object of this value."""
    return _Thawer().walk(frozen) if type(frozen) is tuple else frozen


class _Thawer:
    """Numbers what can be shared as freezing did: before what is inside."""

    def __init__(self) -> None:
        self._shared: list[Any] = []

    def walk(self, frozen: tuple[Any, ...]) -> Any:
        """Everything but values."""
        kind = frozen[0]
        names = _FIELDS.get(kind)
        if names is None:
            return self._plain(kind, frozen)
        thing = kind.__new__(kind)
        self._shared.append(thing)
        walk = self.walk
        parts = [walk(part) if type(part) is tuple else part for part in frozen[1:]]
        if kind in _SLOTTED:
            for name, field in zip(names, parts, strict=True):
                setattr(thing, name, field)
        else:
            vars(thing).update(zip(names, parts, strict=True))
        return thing

    def _plain(self, kind: type, frozen: tuple[Any, ...]) -> Any:
        if kind is _Seen:
            return self._shared[frozen[1]]
        if kind not in _CONTAINERS:
            parts = self._all(frozen[1:])
            return tuple(parts) if kind is tuple else kind(*parts)
        things = deque(maxlen=frozen[1]) if kind is deque else kind()
        self._shared.append(things)
        if kind is list:
            things += self._all(frozen[1:])
        elif kind is deque:
            things += self._all(frozen[2:])
        elif frozen[1:]:
            parts = iter(self._all(frozen[1:]))
            things.update(zip(parts, parts, strict=True))
        return things

    def _all(self, parts: tuple[Any, ...]) -> list[Any]:
        walk = self.walk
        return [walk(part) if type(part) is tuple else part for part in parts]


def part(frozen: Any, *path: Any) -> Any:
    """What is found by following pairs of a class and the name of its attribute."""
    for kind, name in zip(path[::2], path[1::2], strict=True):
        if frozen[0] is not kind:
            raise TypeError(f"{frozen[0]} is not {kind}")
        frozen = frozen[1 + _FIELDS[kind].index(name)]
    return frozen


def _learn(kind: type, thing: object) -> None:
    """The names of a class's attributes: its slots, or what the first instance has."""
    if kind.__module__ == "builtins" or callable(thing):
        raise TypeError(f"cannot freeze {thing!r}")
    slots = tuple(getattr(kind, "__slots__", ()))
    if slots and hasattr(thing, "__dict__"):
        raise TypeError(f"cannot freeze {thing!r}: it has both slots and a dict")
    if slots:
        _SLOTTED.add(kind)
    _FIELDS[kind] = slots or tuple(vars(thing))


def _is_value(kind: type) -> bool:
    """Frozen structs, frozen dataclasses and enums are their own value. Raises TypeError for other structs."""
    if issubclass(kind, msgspec.Struct):
        if not kind.__struct_config__.frozen:
            raise TypeError(f"cannot freeze {kind}: it is a struct that can change")
        return True
    return issubclass(kind, Enum) or (is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


_TICKLESS: set[type] = {int, str, bool, bytes, type(None), type, Room}
"""Types that have no ticks inside. Those that are found out to be are added."""


def shift(frozen: Any, by: int) -> Any:
    """The same value with every tick in it lower by `by`."""
    return _shift(frozen, by) if by and type(frozen) not in _TICKLESS else frozen


def _shift(frozen: Any, by: int) -> Any:
    kind = type(frozen)
    if kind is tuple:
        return tuple([part if type(part) in _TICKLESS else _shift(part, by) for part in frozen])
    if kind is Count:
        return frozen - by
    if issubclass(kind, msgspec.Struct):
        return _shift_fields(frozen, kind.__struct_fields__, by)
    if is_dataclass(kind):
        return _shift_fields(frozen, tuple(kind.__dataclass_fields__), by)
    _TICKLESS.add(kind)
    return frozen


@cache
def _shift_fields(value: Any, names: tuple[str, ...], by: int) -> Any:
    fields = {name: getattr(value, name) for name in names}
    shifted = {name: shift(field, by) for name, field in fields.items()}
    changed = {name: field for name, field in shifted.items() if field != fields[name]}
    if not changed:
        return value
    return msgspec.structs.replace(value, **changed) if isinstance(value, msgspec.Struct) else replace(value, **changed)
