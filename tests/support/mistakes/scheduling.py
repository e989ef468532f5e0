"""Slots and pages of requests that run: who goes on, who waits, who makes room."""

from mistakes.ranks import Patch

from tandem.core.batching import Batches
from tandem.core.slots import Flights


def a_busy_slot_may_be_named(patch: Patch) -> None:
    """A slot runs again before its last result is in."""
    patch.setattr(Flights, "busy", lambda flights, returned=frozenset(): set())


def nobody_makes_room(patch: Patch) -> None:
    """Who cannot grow waits until somebody ends, also when nobody can."""
    patch.setattr("decode.retraction.choose", lambda *asked: [])
    patch.setattr("colocated.role.choose", lambda *asked: [])


def a_blocked_request_is_forgotten(patch: Patch) -> None:
    """A request that has waited for a page once never asks again."""
    patch.setattr(Batches, "_runnable", lambda batches, request: request.runs and request.blocked_at < 0)
