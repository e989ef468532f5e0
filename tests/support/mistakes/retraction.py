"""Copies to host memory and back: when they are done, and whose pages they use meanwhile."""

from mistakes.ranks import Patch

from consensus.leader import Leader
from decode.holdings import Holdings
from decode.intake import Input, State
from decode.retraction import Retraction
from decode.role import DecodeRole
from tandem.core import messages
from tandem.core.effects import Restore, TellRouter
from tandem.core.head import Head
from tandem.core.inputs import Kind, Verdict
from tandem.core.rank import Rank


def a_backup_is_not_awaited(patch: Patch) -> None:
    """Others get the pages of a victim as soon as all ranks may copy them."""
    original = Retraction.on_retract

    def on_retract(retraction: Retraction, request, yes: bool):
        notes = original(retraction, request, yes)
        if yes:
            request.move(Input.BACKED_UP)
            retraction._held.give_back(request)
            retraction._held.retracted.add(request)
        return notes

    patch.setattr(Retraction, "on_retract", on_retract)


def any_backup_will_do(patch: Patch) -> None:
    """That a room was backed up once is taken for the backup that is being made: nobody looks at which it was."""
    conclude, on_backed_up = Leader.conclude, Retraction.on_backed_up

    def conclude_again(leader: Leader, verdict: Verdict):
        if verdict.kind is Kind.BACKED_UP:
            issued = [one for one in leader._issued.get(verdict.room, []) if one.kind is Kind.BACKED_UP]
            verdict = Verdict(verdict.room, Kind.BACKED_UP, len(issued) + 1)
        conclude(leader, verdict)

    def take_any(retraction: Retraction, request, verdict: Verdict):
        return on_backed_up(retraction, request, Verdict(verdict.room, verdict.kind, request.backups))

    patch.setattr(Leader, "conclude", conclude_again)
    patch.setattr(Retraction, "on_backed_up", take_any)


def a_resumed_request_has_a_stale_token(patch: Patch) -> None:
    """A request that comes back feeds its first token again, not its newest one."""
    original = Retraction.on_resume

    def on_resume(retraction: Retraction, request, yes: bool):
        request.generated[-1] = request.generated[0]
        return original(retraction, request, yes)

    patch.setattr(Retraction, "on_resume", on_resume)


def a_resumed_request_begins_its_answer_again(patch: Patch) -> None:
    """A request that comes back goes on from its first token, and tells the others once more."""
    original = Retraction.on_resume

    def on_resume(retraction: Retraction, request, yes: bool):
        request.position -= len(request.generated) - 1
        del request.generated[1:]
        return original(retraction, request, yes)

    patch.setattr(Retraction, "on_resume", on_resume)


def host_pages_go_during_their_backup(patch: Patch) -> None:
    """A request that ends while it is being copied gives its pages on the host back at once."""
    on_end(patch, State.LEAVING, lambda role, request: role._held.give_back_host(request))


def pages_go_during_their_backup(patch: Patch) -> None:
    """A request that ends while it is being copied gives the pages that are copied back at once."""
    on_end(patch, State.LEAVING, lambda role, request: role._held.give_back(request))


def on_end(patch: Patch, state: State, act) -> None:
    original = DecodeRole._end

    def end(role: DecodeRole, request, reason, told_by):
        notes = original(role, request, reason, told_by)
        if request.state is state:
            act(role, request)
        return notes

    patch.setattr(DecodeRole, "_end", end)


def publish_what_was_restored(patch: Patch) -> None:
    """Decode publishes also what came back from host memory, though the cache may have been flushed meanwhile."""
    original = Holdings.publish

    def publish(held: Holdings, request, tokens: int, *, leaving: bool = False):
        backups, request.backups = request.backups, 0
        original(held, request, tokens, leaving=leaving)
        request.backups = backups

    patch.setattr(Holdings, "publish", publish)


def restored_after_the_forward(patch: Patch) -> None:
    """A rank launches the forward of a resumed request before it copies the pages back."""
    original = Rank.on

    def on(rank: Rank, event, now_ms: int):
        effects = original(rank, event, now_ms)
        return sorted(effects, key=lambda effect: isinstance(effect, Restore))

    patch.setattr(Rank, "on", on)


def a_flying_request_is_retracted(patch: Patch) -> None:
    """A victim's pages are taken while its next token is being computed."""
    original = Retraction._victims

    def victims(retraction: Retraction):
        chosen = original(retraction)
        for victim in chosen:
            victim.flying = False
        return chosen

    patch.setattr(Retraction, "_victims", victims)


def an_eviction_is_not_told(patch: Patch) -> None:
    """The router never hears that a request has lost its pages."""
    original = Head.speak

    def speak(head: Head, note):
        told = original(head, note)
        return [e for e in told if not (isinstance(e, TellRouter) and isinstance(e.message, messages.Evicted))]

    patch.setattr(Head, "speak", speak)
