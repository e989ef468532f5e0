"""KV that is used before it is there, or waited for when it cannot come."""

from mistakes.ranks import Patch

from decode.receiver import KVReceiver
from decode.role import DecodeRole
from prefill.sender import KVSender
from tandem.core.effects import Effect, Post, TellPeer
from tandem.core.events import Moved, Written
from tandem.core.inputs import FirstToken
from tandem.core.plan import Plan


def join_before_the_verdict(patch: Patch) -> None:
    """Decode runs a request as soon as its first token is here, whether or not the KV is."""
    original = DecodeRole.on_first_token

    def on_first_token(role: DecodeRole, first: FirstToken):
        role._requests[first.room].landed = True
        return original(role, first)

    patch.setattr(DecodeRole, "on_first_token", on_first_token)


def commit_before_the_write_has_ended(patch: Patch) -> None:
    """The receiver is told of a write when it is posted."""
    post, moved = KVSender._post, KVSender._moved

    def eager(sender: KVSender, chunk, layer):
        effects: list[Effect] = post(sender, chunk, layer)
        told = [sender._writes[each.ticket] for each in effects if isinstance(each, Post)]
        return effects + [TellPeer(write.peer, write.rank, write.commit) for write in told]

    def silent(sender: KVSender, write, event: Moved):
        return [each for each in moved(sender, write, event) if not isinstance(each, TellPeer)]

    patch.setattr(KVSender, "_post", eager)
    patch.setattr(KVSender, "_moved", silent)


def post_before_the_layer_ran(patch: Patch) -> None:
    """Pages are sent when their forward is planned, not when it has computed them."""
    original = KVSender.on_plan

    def on_plan(sender: KVSender, plan: Plan):
        effects = original(sender, plan)
        for chunk in sender._chunks.get(plan.tick, ()):
            for layer in range(*sender._layers):
                effects += sender._post(chunk, layer)
        sender._chunks[plan.tick] = [chunk._replace(pages=()) for chunk in sender._chunks.get(plan.tick, ())]
        return effects

    patch.setattr(KVSender, "on_plan", on_plan)


def one_commit_is_enough(patch: Patch) -> None:
    """Coverage of the last layer counts as coverage of all."""
    patch.setattr("kvtransfer.coverage.Coverage.complete", property(lambda self: self._missing <= 1))


def failed_writes_count_as_sent(patch: Patch) -> None:
    """A sender commits whatever has ended, well or not."""
    original = KVSender._moved

    def moved(sender: KVSender, write, event: Moved):
        if event.result is not Written.OK:
            write, event = write._replace(checked=()), Moved(event.ticket, Written.OK)
        return original(sender, write, event)

    patch.setattr(KVSender, "_moved", moved)


def unsettled_writes_count_as_ended(patch: Patch) -> None:
    """A sender takes a failed write for one that cannot land any more."""
    original = KVSender._moved

    def moved(sender: KVSender, write, event: Moved):
        if event.result is Written.FAILED_UNSETTLED:
            event = Moved(event.ticket, Written.FAILED_SETTLED)
        return original(sender, write, event)

    patch.setattr(KVSender, "_moved", moved)


def a_peer_lost_before_the_grant_is_not_missed(patch: Patch) -> None:
    """Decode says nothing when it has nobody to send its grants to."""
    original = KVReceiver._grant

    def grant(receiver: KVReceiver, note):
        return [each for each in original(receiver, note) if isinstance(each, TellPeer)]

    patch.setattr(KVReceiver, "_grant", grant)
