"""Pages that are given away while somebody can still touch them."""

from mistakes.ranks import Patch, combine

from decode.role import DecodeRole
from kvtransfer.session import SendSession, SendState
from prefill.role import PrefillRole
from tandem.core.pages import PagePool


def free_on_failed(patch: Patch) -> None:
    """Prefill takes the pages back when a request has ended or failed, not when it is quiet."""
    original = PrefillRole._end

    def end(role: PrefillRole, request, reason, told_by):
        notes = original(role, request, reason, told_by)
        role.pool.release(request.room)
        return notes

    patch.setattr(PrefillRole, "_end", end)


def ignore_quarantine(patch: Patch) -> None:
    """Decode frees the pages of a request that ended while prefill could still write into them."""
    patch.setattr(PagePool, "quarantine", PagePool.release)


def quiet_while_writes_are_posted(patch: Patch) -> None:
    """A sender forgets that posted writes still read its pages."""
    patch.setattr(SendSession, "drained", property(lambda self: is_ending(self) and not self.unfinished))


def quiet_while_a_forward_runs(patch: Patch) -> None:
    """A sender forgets that the engine still writes into the pages."""
    patch.setattr(SendSession, "drained", property(lambda self: is_ending(self) and not self.posted))


def is_ending(session: SendSession) -> bool:
    return session.state is SendState.STOPPED or (session.state is SendState.SENDING and session.whole)


def quiet_when_anyone_is(patch: Patch) -> None:
    """The table combines quiet like failed: any instead of all."""
    combine(patch, quiet=lambda facts: any(fact.quiet for fact in facts))


def pages_go_at_the_end_of_a_running_request(patch: Patch) -> None:
    """Decode frees an aborted request's pages while its forward is in flight."""
    original = DecodeRole._end

    def end(role: DecodeRole, request, reason, told_by):
        notes = original(role, request, reason, told_by)
        if request.flying:
            role.pool.release(request.room)
        return notes

    patch.setattr(DecodeRole, "_end", end)
