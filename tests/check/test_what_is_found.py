"""Known mistakes, planted one at a time: the search must find each, and tell the shortest way to it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from checking.models import ALONE, THREE, TWICE, decode, pair, prefill, room
from checking.search import NotAtRest, Violation, explore
from checking.setting import Setting
from checking.world import Stuck
from mistakes.memory import free_on_failed, ignore_quarantine, quiet_when_anyone_is
from mistakes.ranks import Patch, combine
from mistakes.verdicts import admitted_when_one_rank_is_ready, failure_not_forwarded, outcome_decided_locally

from consensus.leader import Leader
from decode.intake import NEXT, Input, State
from decode.retraction import Retraction
from decode.role import DecodeRole
from tandem.core.errors import Divergence, IllegalTransition
from tandem.core.inputs import Abort, Kind, Verdict
from tandem.sim.client import WrongAnswer
from tandem.sim.oracle import StrayAccess


def verdicts_come_twice(patch: Patch) -> None:
    """Rank 0 concludes the same again whenever a fact about the room changes."""

    def conclude(leader: Leader, verdict: Verdict):
        leader._issued.setdefault(verdict.room, [])
        if verdict.kind in leader._kinds:
            leader._verdicts.append(verdict)

    patch.setattr(Leader, "conclude", conclude)


def a_second_end_is_told(patch: Patch) -> None:
    """A request whose pages are quarantined is ended once more by the next abort."""
    original = DecodeRole.on_abort

    def on_abort(role: DecodeRole, abort: Abort):
        notes = original(role, abort)
        return notes or role._end(role._requests[abort.room], abort.reason, told_by=None)

    patch.setattr(DecodeRole, "on_abort", on_abort)


def quiet_is_missed_before_the_end(patch: Patch) -> None:
    """Decode takes quiet to mean something only for a request that has ended already."""
    original = DecodeRole.on_verdict

    def on_verdict(role: DecodeRole, verdict: Verdict):
        notes = original(role, verdict)
        if verdict.kind is Kind.QUIET and role.knows(verdict.room):
            role._requests[verdict.room].quiet = False
        return notes

    patch.setattr(DecodeRole, "on_verdict", on_verdict)


def pages_are_given_before_they_are_copied(patch: Patch) -> None:
    """Others get a request's pages as soon as the vote is won."""
    original = Retraction.on_retract

    def on_retract(retraction: Retraction, request, yes: bool):
        notes = original(retraction, request, yes)
        retraction._held.pool.release(request.room)
        return notes

    patch.setattr(Retraction, "on_retract", on_retract)


def backed_up_when_anyone_has(patch: Patch) -> None:
    """The table counts the copies of the fastest rank instead of those of the slowest."""
    combine(patch, backups=lambda facts: max(fact.backups for fact in facts))


def a_second_backup_is_taken_for_the_first(patch: Patch) -> None:
    """Rank 0 concludes that a room is backed up, but not how often."""
    original = Leader.conclude

    def conclude(leader: Leader, verdict: Verdict):
        original(leader, Verdict(verdict.room, verdict.kind))

    patch.setattr(Leader, "conclude", conclude)


def host_pages_are_given_with_the_request(patch: Patch) -> None:
    """A request that ends while its pages are copied gives those of the host to the next one."""
    original = DecodeRole._end

    def end(role: DecodeRole, request, reason, told_by):
        notes = original(role, request, reason, told_by)
        role._held.give_back_host(request)
        return notes

    patch.setattr(DecodeRole, "_end", end)


def who_ends_while_copied_back_leaves_at_once(patch: Patch) -> None:
    """The pages of a request are given away while a copy may still land in them."""
    patch.setitem(NEXT, (State.RESTORING, Input.ENDED), State.GONE)


@dataclass(frozen=True)
class Plant:
    """A mistake, where it shows, and as what."""

    mistake: Callable[[Patch], None]
    setting: Setting
    found_as: type[Exception] | tuple[type[Exception], ...]


PLANTS = (
    Plant(free_on_failed, prefill(1, aborts=1), StrayAccess),
    Plant(ignore_quarantine, decode(1, aborts=1), StrayAccess),
    Plant(quiet_when_anyone_is, prefill(2, ready=True), StrayAccess),
    Plant(verdicts_come_twice, prefill(1), WrongAnswer),
    Plant(outcome_decided_locally, decode(2), Divergence),
    Plant(admitted_when_one_rank_is_ready, decode(2), (StrayAccess, NotAtRest)),
    Plant(failure_not_forwarded, pair(2, requests=1, aborts=(0, 1)), NotAtRest),
    Plant(a_second_end_is_told, pair(1, requests=1, aborts=(1, 1)), (IllegalTransition, WrongAnswer)),
    Plant(quiet_is_missed_before_the_end, decode(1, aborts=1), Stuck),
    Plant(pages_are_given_before_they_are_copied, room(1, **ALONE), StrayAccess),
    Plant(backed_up_when_anyone_has, room(2), StrayAccess),
    Plant(a_second_backup_is_taken_for_the_first, room(1, **TWICE), NotAtRest),
    Plant(host_pages_are_given_with_the_request, room(1, **ALONE, aborts=1), StrayAccess),
    Plant(who_ends_while_copied_back_leaves_at_once, room(1, **THREE, aborts=1), StrayAccess),
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.mistake.__name__)
def test_the_search_finds(plant: Plant, monkeypatch: Patch):
    plant.mistake(monkeypatch)
    with pytest.raises(Violation) as found:
        explore(plant.setting)
    assert isinstance(found.value.cause, plant.found_as)


def test_the_story_is_the_shortest(monkeypatch: Patch):
    """Nothing that happens in it could be left out."""
    ignore_quarantine(monkeypatch)
    with pytest.raises(Violation) as found:
        explore(decode(1, aborts=1))
    story = [line.split("  ", 3)[-1].strip() for line in str(found.value).splitlines()[1:]]
    assert story == [
        "<- submit r1, 2 tokens, at most 2 more",
        "-> p0.0: grant r1 pages 0",
        "<- cancel r1: client_gone",
        "-> router: done r1: client_gone",
        "-> p0.0: cancelled r1: client_gone",
    ]
