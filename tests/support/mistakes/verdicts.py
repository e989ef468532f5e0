"""What each rank sees for itself, and acts upon before all have agreed."""

import msgspec
from mistakes.ranks import Patch, combine, on_ranks, sessions

from decode.role import DecodeRole
from kvtransfer.session import SendState
from tandem.core.effects import Observe
from tandem.core.events import Combined
from tandem.core.head import Head
from tandem.core.inputs import FirstToken, Kind, Verdict
from tandem.core.messages import Commit, Fact, Progress, Quiet
from tandem.core.plan import ToldPeer
from tandem.core.rank import Rank
from tandem.core.scheduler import Scheduler


def outcome_decided_locally(patch: Patch) -> None:
    """A decode rank lets a request join when its own layers have landed."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        if isinstance(event, Commit) and sessions(rank).get(event.room):
            session = sessions(rank)[event.room]
            if session.coverage and session.coverage.complete:
                rank.scheduler.role.on_verdict(Verdict(event.room, Kind.TRANSFERRED))
        return effects

    patch.setattr(Rank, "on", on)


def local_deferred_release(patch: Patch) -> None:
    """Each prefill rank takes pages back when its own session is quiet, not when the group's verdict says so."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        for session in sessions(rank).values():
            if getattr(session, "state", None) is SendState.QUIET and rank.scheduler.role.pool.held(session.room):
                rank.scheduler.role.pool.release(session.room)
        return effects

    patch.setattr(Rank, "on", on)


def re_poll_after_the_verdict(patch: Patch) -> None:
    """A rank that is told that all is well looks at its own facts once more, and acts on what it sees now."""

    def change(rank: Rank) -> None:
        on_verdict = rank.scheduler.role.on_verdict

        def look_again(verdict: Verdict):
            fact = rank._facts.get(verdict.room)
            failed = verdict.kind in (Kind.BOOTSTRAPPED, Kind.TRANSFERRED) and fact is not None and fact.failed
            return on_verdict(Verdict(verdict.room, Kind.FAILED) if failed else verdict)

        rank.scheduler.role.on_verdict = look_again  # type: ignore[method-assign]

    on_ranks(patch, change)


def failure_is_handled_where_it_is_seen(patch: Patch) -> None:
    """Rank 0 ends a request as soon as its own transfer has failed; the others never hear of it in a frame."""
    original = Rank._observe

    def observe(rank: Rank, effects):
        original(rank, effects)
        for effect in effects:
            if isinstance(effect, Observe) and effect.fact.failed and rank.place.first:
                role = rank.scheduler.role
                if role.knows(effect.room):
                    role.on_verdict(Verdict(effect.room, Kind.FAILED))

    patch.setattr(Rank, "_observe", observe)


def metadata_gate_at_apply_only(patch: Patch) -> None:
    """The first token reaches each rank over a link of its own, on some a tick later; nobody has voted on it."""

    def change(rank: Rank) -> None:
        role, late = rank.scheduler.role, []
        if rank.place.first or not isinstance(role, DecodeRole):
            return
        take, decide = role.on_first_token, role.decide

        def keep(first: FirstToken):
            late.append(first)
            return []

        def decide_and_then_see(slot, now_ms: int):
            decision = decide(slot, now_ms)
            for first in late:
                if role.knows(first.room):
                    take(first)
            late.clear()
            return decision

        role.on_first_token, role.decide = keep, decide_and_then_see  # type: ignore[method-assign]

    on_ranks(patch, change)


def admitted_when_one_rank_is_ready(patch: Patch) -> None:
    """Bootstrapping is over as soon as any rank says so."""
    combine(patch, progress=lambda facts: max(fact.progress for fact in facts))


def a_no_is_not_heard(patch: Patch) -> None:
    """The ballot is passed on as it came: only the first rank's answer would count, and here not even that."""
    patch.setattr("tandem.core.rank.fold", lambda ballot, answers: ballot)


def quiet_is_concluded_from_progress(patch: Patch) -> None:
    """Rank 0 takes a room for quiet as soon as its ranks are bootstrapped."""
    original = Head.gather

    def gather(head: Head, event, now_ms: int):
        if isinstance(event, Combined) and event.fact and event.fact.progress >= Progress.WAITING_FOR_INPUT:
            event = Combined(event.room, Fact(event.fact.progress, event.fact.failed, quiet=True))
        original(head, event, now_ms)

    patch.setattr(Head, "gather", gather)


def failure_not_forwarded(patch: Patch) -> None:
    """Each group ends its own half and leaves the other waiting."""
    original = Scheduler.step

    def step(scheduler: Scheduler, frame):
        plan = original(scheduler, frame)
        return msgspec.structs.replace(plan, notes=tuple(n for n in plan.notes if not isinstance(n, ToldPeer)))

    patch.setattr(Scheduler, "step", step)


def quiet_is_not_told_to_the_peer(patch: Patch) -> None:
    """Decode never hears that its quarantined pages are safe."""
    original = Head.gather

    def gather(head: Head, event, now_ms: int):
        if not isinstance(event, Quiet):
            original(head, event, now_ms)

    patch.setattr(Head, "gather", gather)
