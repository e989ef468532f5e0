"""Peers that are cut off, come back as other instances, or send other bytes than arrive."""

import msgspec
from mistakes.ranks import Patch, combine

from decode.receiver import KVReceiver
from kvtransfer.session import ReceiveSession, ReceiveState
from prefill.role import PrefillRole
from prefill.sender import KVSender
from tandem.core.events import Fenced, Verified
from tandem.core.head import Head
from tandem.core.inputs import Kind, Verdict
from tandem.core.quarantine import Quarantine
from tandem.core.recent import Recent
from tandem.sim.peer_link import PeerLink


def fenced_when_anyone_is(patch: Patch) -> None:
    """The table combines fenced like failed: any instead of all."""
    combine(patch, fenced=lambda facts: any(fact.fenced for fact in facts))


def fenced_is_told_before_it_is_done(patch: Patch) -> None:
    """A driver says that a group is cut off as soon as it has begun to do it."""
    original = PeerLink.fence

    def fence(peers: PeerLink, group: str):
        original(peers, group)
        peers._world.clock.after(0, lambda: peers._node.on(Fenced(group)))

    patch.setattr(PeerLink, "fence", fence)


def nobody_is_cut_off(patch: Patch) -> None:
    """Pages wait for a peer's word for ever."""
    patch.setattr(Quarantine, "overdue", lambda quarantine, now_ms: [])


def a_group_is_cut_off_once(patch: Patch) -> None:
    """Who has cut a group off once does not do so again, whoever waits for it then."""
    original = Quarantine.overdue

    def overdue(quarantine: Quarantine, now_ms: int):
        cut_off = vars(quarantine).setdefault("cut_off", {})
        late = [peer for peer in original(quarantine, now_ms) if peer not in cut_off]
        cut_off.update(dict.fromkeys(late))
        for held in quarantine:
            if held.peer in cut_off:
                quarantine._due.drop(held.room)
        return late

    patch.setattr(Quarantine, "overdue", overdue)


def quiet_is_said_after_a_fence_of_our_own(patch: Patch) -> None:
    """Prefill tells decode that a room's pages are safe once it has cut decode off."""
    original = PrefillRole.on_verdict

    def on_verdict(role: PrefillRole, verdict: Verdict):
        return original(role, Verdict(verdict.room, Kind.QUIET) if verdict.kind is Kind.FENCED else verdict)

    patch.setattr(PrefillRole, "on_verdict", on_verdict)


def quiet_is_answered_after_a_fence_of_our_own(patch: Patch) -> None:
    """Prefill takes a room that has gone because decode was cut off for one that it never had."""
    original = PrefillRole.on_abort

    def on_abort(role: PrefillRole, abort):
        role._fenced = Recent()
        return original(role, abort)

    patch.setattr(PrefillRole, "on_abort", on_abort)


def a_successor_vouches_for_the_dead(patch: Patch) -> None:
    """A prefill group's next incarnation says quiet of rooms that it never knew, and decode believes it."""
    patch.setattr(Head, "_can_vouch", lambda head, room: True)


def the_same_instance_settles_a_write(patch: Patch) -> None:
    """A sender takes a write for settled when it meets the receiver again, though that has fenced nothing."""
    original = KVSender._meet

    def meet(sender: KVSender, session, hello):
        session.unsettled.pop((hello.group, hello.rank), None)
        return original(sender, session, hello)

    patch.setattr(KVSender, "_meet", meet)


def a_grant_of_the_old_instance_is_used(patch: Patch) -> None:
    """A sender keeps what a lost decode rank had granted for rooms that it has not been submitted yet."""
    original = KVSender._lose

    def lose(sender: KVSender, session, event):
        return original(sender, session, event) if session.opened else []

    patch.setattr(KVSender, "_lose", lose)


def a_fence_of_one_group_frees_rooms_of_another(patch: Patch) -> None:
    """A receiver that has cut a group off says so of all rooms, whoever was told their pages."""
    on_event = KVReceiver.on_event

    def fence_all(receiver: KVReceiver, event):
        if not isinstance(event, Fenced):
            return on_event(receiver, event)
        groups = dict.fromkeys(session.peer for session in receiver._sessions.values())
        return [effect for group in groups for effect in on_event(receiver, Fenced(group))]

    patch.setattr(KVReceiver, "on_event", fence_all)


def a_fence_counts_for_rooms_that_are_granted_later(patch: Patch) -> None:
    """A receiver that has cut a group off says so of rooms, too, whose pages it has not told the group yet."""
    on_event, granted_by = KVReceiver.on_event, KVReceiver._granted_by

    def fence_early(receiver: KVReceiver, event):
        receiver._fencing = isinstance(event, Fenced)  # type: ignore[attr-defined]
        return on_event(receiver, event)

    def known(receiver: KVReceiver, group: str):
        if not receiver._fencing:  # type: ignore[attr-defined]
            return granted_by(receiver, group)
        return [session for session in receiver._sessions.values() if session.peer == group]

    patch.setattr(KVReceiver, "on_event", fence_early)
    patch.setattr(KVReceiver, "_granted_by", known)


def a_lost_first_token_is_not_missed(patch: Patch) -> None:
    """Decode waits for a first token whose sender it has lost, as all KV is there."""
    patch.setattr(KVReceiver, "_waits", lambda receiver, session, rank: session.state is ReceiveState.OPEN)


def a_mismatch_counts_as_landed(patch: Patch) -> None:
    """A receiver counts a commit whether or not its blocks are what was sent."""
    original = KVReceiver.on_event

    def on_event(receiver: KVReceiver, event):
        return original(receiver, Verified(event.commit, True) if isinstance(event, Verified) else event)

    patch.setattr(KVReceiver, "on_event", on_event)


def blocks_are_not_compared(patch: Patch) -> None:
    """A receiver counts a commit at once."""
    original = KVReceiver._commit
    patch.setattr(
        KVReceiver, "_commit", lambda receiver, commit: original(receiver, msgspec.structs.replace(commit, checks=()))
    )


def blocks_are_compared_with_other_pages(patch: Patch) -> None:
    """A receiver looks for the first page of the prompt in the first page that it granted, also after a hit."""
    original = ReceiveSession.placed

    def placed(session: ReceiveSession, checks):
        return original(
            session, [(min(index, len(session.pages) - 1) + session.first_page, crc) for index, crc in checks]
        )

    patch.setattr(ReceiveSession, "placed", placed)


def corrupted_when_everyone_sees_it(patch: Patch) -> None:
    """The table combines corrupt like quiet: all instead of any."""
    combine(patch, corrupt=lambda facts: all(fact.corrupt for fact in facts))
