"""Senders and receivers of one room as a pair, over a link that the test delivers by hand."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode.receiver import KVReceiver
from kvtransfer.session import SendState
from prefill.sender import Chunk, KVSender, completed_pages, sampled
from tandem.core.config import Group, RoleName
from tandem.core.effects import BackUp, Drop, Effect, Fence, Observe, Post, Restore, TellPeer, Verify
from tandem.core.errors import IllegalTransition
from tandem.core.events import BackedUp, Fenced, LayerRan, Moved, PeerLost, PeerOpened, Ran, Verified, Written
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room, Slot, Tick
from tandem.core.inputs import FirstToken
from tandem.core.messages import Commit, Fact, Grant, Hello, Progress, Region
from tandem.core.plan import (
    Ask,
    CutOff,
    Forgotten,
    Granted,
    Note,
    Opened,
    Plan,
    Question,
    Resumed,
    Retracted,
    Returned,
    Row,
    Stopped,
)
from tandem.core.requests import Sampling

ROOM = Room(RequestId(1), 1)
SIZE = 4
ASK = Ask(Question.PREALLOC, ROOM, "p0")
READY = Observe(ROOM, Fact(Progress.WAITING_FOR_INPUT))
QUIET = Observe(ROOM, Fact(Progress.SUCCESS, quiet=True))
ENDED = Observe(ROOM, Fact(Progress.TRANSFERRING, quiet=True))
LANDED = Observe(ROOM, Fact(Progress.SUCCESS))
FAILED = Observe(ROOM, Fact(failed=True))
FENCED = Observe(ROOM, Fact(Progress.TRANSFERRING, fenced=True))


def hello(group: Group, rank: int) -> Hello:
    first, last = group.layers(RankId(rank))
    return Hello(group.name, RankId(rank), group.size, 1, "print", "sim", "", Region(0, first, last, 64, 64))


def opened(prompt: int) -> Opened:
    return Opened(ROOM, "d0", prompt)


def plan(*notes: Note, tick: int = 0, rows: tuple[Row, ...] = ()) -> Plan:
    return Plan(Tick(tick), Slot(0), rows, (), notes, 0)


def row(start: int, end: int, prompt: int) -> Row:
    """A chunk of a prompt whose logical page i is the page 10 + i."""
    pages = tuple(PageId(10 + index) for index in range(-(-end // SIZE)))
    return Row(ROOM, tuple(range(start, end)), start, pages, end == prompt, Sampling())


class Pair:
    """All ranks of a prefill and a decode group that have met."""

    def __init__(self, prefill: tuple[int, ...] = (2,), decode: tuple[int, ...] = (2,), sample: int = 0) -> None:
        self.prefill = Group(RoleName.PREFILL, "p0", prefill)
        self.decode = Group(RoleName.DECODE, "d0", decode)
        self.senders = [KVSender(self.prefill.layers(RankId(rank)), SIZE, sample) for rank in range(len(prefill))]
        self.receivers = [
            KVReceiver("d0", RankId(rank), self.decode.layers(RankId(rank)), SIZE) for rank in range(self.decode.size)
        ]
        for one in self.senders:
            for rank in range(self.decode.size):
                assert one.on_event(PeerOpened(hello(self.decode, rank))) == []
        for one in self.receivers:
            for rank in range(self.prefill.size):
                assert one.on_event(PeerOpened(hello(self.prefill, rank))) == []

    def grant(self, prompt: int) -> list[TellPeer]:
        """The vote passes: what the receivers send."""
        assert all(one.answer(ASK) for one in self.receivers)
        pages = tuple(PageId(20 + index) for index in range(-(-prompt // SIZE)))
        granted = Granted(ROOM, "p0", prompt, 0, pages)
        return [sent for one in self.receivers for sent in told(one.on_plan(plan(granted)))]

    def opened(self, prompt: int) -> None:
        """The room is ready to be sent everywhere."""
        for one in self.senders:
            one.on_plan(plan(opened(prompt)))
        for sent in self.grant(prompt):
            self.senders[sent.rank].on_event(sent.message)


def told(effects: list[Effect]) -> list[TellPeer]:
    return [effect for effect in effects if isinstance(effect, TellPeer)]


def posts(effects: list[Effect]) -> list[Post]:
    return [effect for effect in effects if isinstance(effect, Post)]


def ready_sender(prompt: int = 8) -> KVSender:
    pair = Pair()
    pair.opened(prompt)
    return pair.senders[0]


# bootstrap


def test_a_sender_is_ready_when_the_room_is_open_and_all_its_grants_are_in():
    pair = Pair(decode=(1, 1))
    (sender,) = pair.senders
    first, second = pair.grant(8)
    assert sender.on_event(first.message) == []
    assert sender.on_plan(plan(opened(8))) == []
    assert sender.on_event(second.message) == [READY]
    assert sender.on_event(second.message) == [], "a grant that comes twice says nothing new"


def test_grants_may_come_before_the_room_is_open():
    pair = Pair()
    for sent in pair.grant(8):
        assert pair.senders[0].on_event(sent.message) == []
    assert pair.senders[0].on_plan(plan(opened(8))) == [READY]


def test_grants_whose_room_never_comes_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("prefill.sender.MAX_EARLY", 2)
    (sender,) = Pair().senders
    for number in range(5):
        sender.on_event(Grant("d0", Room(RequestId(number), 1), RankId(0), 0, (PageId(20),)))
    assert sender.open_rooms() == 2


def test_a_commit_for_a_foreign_layer_ends_its_room():
    pair = Pair()
    pair.opened(8)
    assert pair.receivers[0].on_event(Commit(ROOM, LayerId(2), 0, 8)) == [FAILED]


def test_grants_may_come_before_the_handshake_is_done():
    sender = KVSender((LayerId(0), LayerId(2)), SIZE, 0)
    sender.on_event(Grant("d0", ROOM, RankId(0), 0, (PageId(20),)))
    assert sender.on_plan(plan(opened(4))) == []
    group = Group(RoleName.DECODE, "d0", (2,))
    assert sender.on_event(PeerOpened(hello(group, 0))) == [READY]


def test_a_room_that_nobody_takes_over_is_ready_at_once_and_posts_nothing():
    sender = KVSender((LayerId(0), LayerId(2)), SIZE, 0)
    assert sender.on_plan(plan(Opened(ROOM, None, 4))) == [READY]
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    assert sender.on_event(LayerRan(Tick(1), LayerId(0))) == []
    assert sender.on_event(Ran(Tick(1), ())) == [QUIET]


def test_a_grant_for_a_room_that_has_gone_leaves_nothing():
    pair = Pair()
    (sender,) = pair.senders
    sender.on_plan(plan(opened(8), Forgotten(ROOM)))
    for sent in pair.grant(8):
        assert sender.on_event(sent.message) == []
    assert sender.open_rooms() == 0


def test_a_grant_goes_to_each_prefill_rank_that_owns_a_layer_once():
    pair = Pair(prefill=(1, 2, 1), decode=(2, 2))
    assert [sent.rank for sent in pair.grant(8)] == [0, 1, 1, 2]
    assert {sent.group for sent in pair.grant(8)} == {"p0"}


# the vote


def test_a_receiver_says_no_while_a_session_that_owns_its_layers_is_not_open():
    receiver = KVReceiver("d0", RankId(0), (LayerId(0), LayerId(2)), SIZE)
    prefill = Group(RoleName.PREFILL, "p0", (1, 1))
    receiver.on_event(PeerOpened(hello(prefill, 0)))
    assert not receiver.answer(ASK)
    assert receiver.open_rooms() == 0
    receiver.on_event(PeerOpened(hello(prefill, 1)))
    assert receiver.answer(ASK)


@pytest.mark.parametrize("note", [Returned(ROOM), Forgotten(ROOM)])
def test_a_reservation_that_is_given_back_leaves_nothing(note: Note):
    (receiver,) = Pair().receivers
    receiver.answer(ASK)
    receiver.on_plan(plan(note))
    assert receiver.open_rooms() == 0


def test_a_peer_lost_between_vote_and_commit_is_a_fact_not_a_difference():
    (receiver,) = Pair().receivers
    receiver.answer(ASK)
    assert receiver.on_event(PeerLost("p0", RankId(0))) == []
    assert receiver.on_plan(plan(Granted(ROOM, "p0", 8, 0, (PageId(1), PageId(2))))) == [FAILED]


def test_prefill_is_asked_nothing():
    with pytest.raises(IllegalTransition):
        KVSender((LayerId(0), LayerId(2)), SIZE, 0).answer(ASK)


# sending


def test_a_layer_is_posted_when_it_has_run_and_committed_when_the_write_has_ended():
    sender = ready_sender(8)
    assert sender.on_plan(plan(tick=1, rows=(row(0, 8, 8),))) == []
    (post,) = sender.on_event(LayerRan(Tick(1), LayerId(1)))
    assert (post.room, post.peer, post.rank, post.layer, post.blocks) == (ROOM, "d0", 0, 1, ((10, 20), (11, 21)))
    assert sender.on_event(Moved(post.ticket, Written.OK)) == [
        TellPeer("d0", RankId(0), Commit(ROOM, LayerId(1), 0, 8)),
    ]


def test_a_sender_is_quiet_when_the_whole_prompt_has_run_and_every_write_has_ended():
    sender = ready_sender(8)
    sender.on_plan(plan(tick=1, rows=(row(0, 8, 8),)))
    first, second = (posts(sender.on_event(LayerRan(Tick(1), LayerId(layer))))[0] for layer in (0, 1))
    sender.on_event(Moved(first.ticket, Written.OK))
    assert sender.on_event(Ran(Tick(1), ())) == []
    assert QUIET in sender.on_event(Moved(second.ticket, Written.OK))


def test_a_sender_is_not_quiet_between_two_chunks():
    sender = ready_sender(8)
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 8),)))
    for layer in (0, 1):
        (post,) = sender.on_event(LayerRan(Tick(1), LayerId(layer)))
        assert len(sender.on_event(Moved(post.ticket, Written.OK))) == 1
    assert sender.on_event(Ran(Tick(1), ())) == []


def test_a_stopped_sender_posts_nothing_more_and_is_quiet_when_what_flies_has_ended():
    sender = ready_sender(8)
    sender.on_plan(plan(tick=1, rows=(row(0, 8, 8),)))
    (post,) = sender.on_event(LayerRan(Tick(1), LayerId(0)))
    assert sender.on_plan(plan(Stopped(ROOM), tick=2)) == [Drop(ROOM)]
    assert sender.on_event(LayerRan(Tick(1), LayerId(1))) == []
    assert sender.on_event(Ran(Tick(1), ())) == []
    assert ENDED in sender.on_event(Moved(post.ticket, Written.OK))


def test_a_sender_that_has_launched_nothing_is_quiet_as_soon_as_it_stops():
    assert ready_sender().on_plan(plan(Stopped(ROOM), tick=1)) == [ENDED]


def test_a_write_that_failed_and_is_settled_fails_the_room_and_lets_it_become_quiet():
    sender = ready_sender(4)
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    (post,) = sender.on_event(LayerRan(Tick(1), LayerId(0)))
    assert sender.on_event(Moved(post.ticket, Written.FAILED_SETTLED)) == [FAILED]
    assert sender.on_event(LayerRan(Tick(1), LayerId(1))) == [], "nothing more is posted for a failed room"
    assert sender.on_event(Ran(Tick(1), ())) == [ENDED]


def test_a_write_that_may_still_land_is_never_quiet():
    sender = ready_sender(4)
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    (post,) = sender.on_event(LayerRan(Tick(1), LayerId(0)))
    assert sender.on_event(Moved(post.ticket, Written.FAILED_UNSETTLED)) == [FAILED]
    assert sender.on_event(Ran(Tick(1), ())) == []
    assert sender.on_plan(plan(Stopped(ROOM), tick=2)) == []


def unsettled_sender() -> tuple[KVSender, Group]:
    """Its room is stopped, and one of its writes may still land."""
    pair = Pair()
    pair.opened(4)
    (sender,) = pair.senders
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    (post,) = sender.on_event(LayerRan(Tick(1), LayerId(0)))
    sender.on_event(Moved(post.ticket, Written.FAILED_UNSETTLED))
    sender.on_event(Ran(Tick(1), ()))
    assert sender.on_plan(plan(Stopped(ROOM), tick=2)) == []
    return sender, pair.decode


@pytest.mark.parametrize("changed", [{"incarnation": 2}, {"fence": 1}])
def test_a_new_instance_of_its_receiver_settles_a_write(changed: dict[str, int]):
    """What was written to the old one cannot land any more: its process is gone, or it has cut us off."""
    sender, decode = unsettled_sender()
    sender.on_event(PeerLost("d0", RankId(0)))
    met = hello(decode, 0)
    assert sender.on_event(PeerOpened(met)) == [], "the same as before: the write may still land"
    assert sender.on_event(PeerOpened(msgspec.structs.replace(met, **changed))) == [ENDED]


def test_a_write_that_ends_unsettled_after_its_receiver_is_another_instance_is_settled():
    pair = Pair()
    pair.opened(4)
    (sender,) = pair.senders
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    (post,) = sender.on_event(LayerRan(Tick(1), LayerId(0)))
    sender.on_event(PeerLost("d0", RankId(0)))
    sender.on_event(PeerOpened(msgspec.structs.replace(hello(pair.decode, 0), fence=1)))
    sender.on_event(Ran(Tick(1), ()))
    sender.on_plan(plan(Stopped(ROOM), tick=2))
    assert sender.on_event(Moved(post.ticket, Written.FAILED_UNSETTLED)) == [ENDED]


def test_a_fence_of_our_own_settles_writes_but_says_nothing_about_the_peers_pages():
    sender, _ = unsettled_sender()
    assert sender.on_plan(plan(CutOff("d0"), tick=3)) == [Fence("d0")]
    assert sender.on_event(Fenced("d1")) == []
    assert sender.on_event(Fenced("d0")) == [FENCED]


def test_a_rank_that_was_quiet_says_so_too_when_its_group_cuts_the_peer_off():
    sender = ready_sender(8)
    sender.on_plan(plan(Stopped(ROOM), tick=1))
    assert sender.on_event(Fenced("d0")) == [Observe(ROOM, Fact(fenced=True))]


def test_a_fence_waits_for_what_still_computes():
    """A forward under way writes into the room's pages."""
    pair = Pair()
    pair.opened(4)
    (sender,) = pair.senders
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    sender.on_plan(plan(Stopped(ROOM), tick=2))
    assert sender.on_event(Fenced("d0")) == []
    assert sender.on_event(Ran(Tick(1), ())) == [FENCED]


def test_rooms_that_have_posted_nothing_are_not_touched_by_a_fence():
    sender = ready_sender(4)
    assert sender.on_event(Fenced("d0")) == []
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    for layer in (0, 1):
        for post in posts(sender.on_event(LayerRan(Tick(1), LayerId(layer)))):
            sender.on_event(Moved(post.ticket, Written.OK))
    assert sender.on_event(Ran(Tick(1), ())) == [QUIET]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_first_token_that_was_lost_with_its_sender_fails_the_room(rank: int):
    """All KV is here, and rank 0 waits for nothing else: what the other ranks lose, they have had the use of."""
    receiver = complete_receiver()
    lost = receiver.on_event(PeerLost("p0", RankId(rank)))
    assert lost == ([FAILED] if rank == 0 else [])


def test_a_first_token_that_has_come_is_not_missed():
    receiver = complete_receiver()
    assert receiver.on_event(FirstToken(ROOM, 7)) == []
    assert receiver.on_event(PeerLost("p0", RankId(0))) == []


def test_a_first_token_for_no_room_says_nothing():
    assert Pair().receivers[0].on_event(FirstToken(ROOM, 7)) == []


def complete_receiver() -> KVReceiver:
    pair = Pair(prefill=(1, 1))
    pair.grant(8)
    (receiver,) = pair.receivers
    for layer in (0, 1):
        receiver.on_event(Commit(ROOM, LayerId(layer), 0, 8))
    return receiver


def test_every_granted_room_of_a_fenced_group_is_fenced_on_decode():
    pair = Pair()
    pair.grant(8)
    (receiver,) = pair.receivers
    assert receiver.on_plan(plan(CutOff("p0"))) == [Fence("p0")]
    assert receiver.on_event(Fenced("p1")) == []
    assert receiver.on_event(Fenced("p0")) == [Observe(ROOM, Fact(fenced=True))]


# checksums


def test_the_blocks_of_a_sample_are_digested_and_their_digests_ride_on_the_commit():
    pair = Pair(sample=1)
    pair.opened(8)
    (sender,) = pair.senders
    sender.on_plan(plan(tick=1, rows=(row(0, 8, 8),)))
    (post,) = posts(sender.on_event(LayerRan(Tick(1), LayerId(0))))
    assert post.sampled == (0, 1)
    (sent,) = told(sender.on_event(Moved(post.ticket, Written.OK, (11, 22))))
    assert sent.message == Commit(ROOM, LayerId(0), 0, 8, ((0, 11), (1, 22)))


@given(st.integers(1, 300), st.integers(1, 64))
def test_a_sample_is_one_block_of_so_many_on_every_layer(pages: int, sample: int):
    chunk = Chunk(ROOM, 0, tuple(map(PageId, range(pages))), pages * SIZE)
    for layer in range(3):
        assert abs(len(sampled(chunk, LayerId(layer), sample)) - pages / sample) <= 1


def test_a_sample_may_be_empty():
    assert sampled(Chunk(ROOM, 0, (PageId(1),), SIZE), LayerId(0), 0) == ()


def test_a_commit_counts_once_its_blocks_are_what_was_sent():
    receiver = checked_receiver()
    assert receiver.on_event(CHECKED) == [Verify(CHECKED, ((PageId(21), 22),))]
    assert receiver.on_event(Verified(CHECKED, intact=True)) == [LANDED]


def test_other_bytes_than_were_sent_are_a_failure_with_a_name():
    receiver = checked_receiver()
    receiver.on_event(CHECKED)
    assert receiver.on_event(Verified(CHECKED, intact=False)) == [Observe(ROOM, Fact(corrupt=True))]


def test_nothing_is_said_of_blocks_whose_room_has_gone_meanwhile():
    receiver = checked_receiver()
    receiver.on_event(CHECKED)
    receiver.on_plan(plan(Forgotten(ROOM)))
    assert receiver.on_event(Verified(CHECKED, intact=False)) == []
    assert receiver.on_event(Verified(CHECKED, intact=True)) == []


@pytest.mark.parametrize("page", [-1, 2, 99])
def test_a_digest_of_a_page_that_was_not_granted_fails_the_room(page: int):
    commit = msgspec.structs.replace(CHECKED, checks=((page, 1),))
    assert checked_receiver().on_event(commit) == [FAILED]


CHECKED = Commit(ROOM, LayerId(1), 0, 8, ((1, 22),))


def checked_receiver() -> KVReceiver:
    """It waits for layer 1 only."""
    pair = Pair()
    pair.grant(8)
    (receiver,) = pair.receivers
    assert receiver.on_event(Commit(ROOM, LayerId(0), 0, 8)) == []
    return receiver


def test_a_lost_peer_fails_the_rooms_it_was_to_receive_and_no_others():
    sender = ready_sender()
    assert sender.on_event(PeerLost("d1", RankId(0))) == []
    assert sender.on_event(PeerLost("d0", RankId(0))) == [FAILED]
    assert sender.on_event(PeerLost("d0", RankId(0))) == [], "failed is said once"


def test_what_a_lost_rank_has_granted_is_never_written_to():
    """Its next incarnation gives the same pages to others. The room came to this rank after the loss."""
    pair = Pair()
    (sender,) = pair.senders
    for sent in pair.grant(8):
        sender.on_event(sent.message)
    assert sender.on_event(PeerLost("d0", RankId(0))) == []
    assert sender.on_event(PeerOpened(hello(pair.decode, 0))) == []
    assert sender.on_plan(plan(opened(8))) == [FAILED]
    assert sender.on_event(Grant("d0", ROOM, RankId(0), 0, (PageId(30), PageId(31)))) == []


def test_grants_that_are_lost_before_their_room_comes_leave_nothing():
    """It may never come: it was for an earlier incarnation of this group."""
    pair = Pair(prefill=(2,), decode=(1, 1))
    (sender,) = pair.senders
    for sent in pair.grant(8):
        sender.on_event(sent.message)
    assert sender.on_event(PeerLost("d0", RankId(0))) == []
    assert sender.open_rooms() == 1, "the other rank's grant is still there"
    assert sender.on_event(PeerLost("d0", RankId(1))) == []
    assert sender.open_rooms() == 0
    assert sender.on_plan(plan(opened(8))) == [FAILED]


def test_a_grant_of_another_group_is_not_taken_for_one_of_the_peer():
    (sender,) = Pair().senders
    sender.on_plan(plan(opened(4)))
    assert sender.on_event(Grant("d1", ROOM, RankId(0), 0, (PageId(20),))) == []
    assert sender.on_event(Grant("d0", ROOM, RankId(0), 0, (PageId(21),))) == [READY]


def sender_granted(first_page: int, pages: int) -> KVSender:
    """Ready, with a grant for `pages` pages of a prompt from `first_page` on; logical page i goes to page 20 + i."""
    (sender,) = Pair().senders
    sender.on_plan(plan(opened((first_page + pages) * SIZE)))
    granted = tuple(PageId(20 + first_page + index) for index in range(pages))
    assert sender.on_event(Grant("d0", ROOM, RankId(0), first_page, granted)) == [READY]
    return sender


def sent_by(sender: KVSender, rows: list[Row]) -> list[tuple[tuple[tuple[int, int], ...], Commit]]:
    """What each write of layer 0 carries, and what it commits once it has ended."""
    sent = []
    for tick, each in enumerate(rows, start=1):
        sender.on_plan(plan(tick=tick, rows=(each,)))
        for post in posts(sender.on_event(LayerRan(Tick(tick), LayerId(0)))):
            (commit,) = told(sender.on_event(Moved(post.ticket, Written.OK)))
            sent.append((post.blocks, commit.message))
    return sent


def test_the_first_chunk_behind_a_cached_prefix_also_sends_the_prefix():
    sender = sender_granted(0, 4)
    assert sent_by(sender, [row(8, 12, 14), row(12, 14, 14)]) == [
        (((10, 20), (11, 21), (12, 22)), Commit(ROOM, LayerId(0), 0, 12)),
        (((13, 23),), Commit(ROOM, LayerId(0), 12, 14)),
    ]


def test_a_first_chunk_that_fills_no_page_sends_the_cached_prefix_at_once():
    sender = sender_granted(0, 3)
    assert sent_by(sender, [row(8, 10, 11), row(10, 11, 11)]) == [
        (((10, 20), (11, 21)), Commit(ROOM, LayerId(0), 0, 8)),
        (((12, 22),), Commit(ROOM, LayerId(0), 8, 11)),
    ]


def test_what_the_decode_group_has_is_not_sent():
    sender = sender_granted(1, 2)
    assert sent_by(sender, [row(0, 8, 10), row(8, 10, 10)]) == [
        (((11, 21),), Commit(ROOM, LayerId(0), 4, 8)),
        (((12, 22),), Commit(ROOM, LayerId(0), 8, 10)),
    ]


def test_a_chunk_that_the_decode_group_has_whole_posts_nothing_and_holds_nothing_up():
    sender = sender_granted(2, 1)
    rows = [row(0, 4, 10), row(4, 8, 10), row(8, 10, 10)]
    assert sent_by(sender, rows) == [(((12, 22),), Commit(ROOM, LayerId(0), 8, 10))]


@pytest.mark.parametrize(("first_page", "pages"), [(1, 1), (1, 3), (0, 2), (0, 4), (4, 0), (3, 0), (-1, 4)])
def test_a_grant_of_other_pages_than_the_prompt_needs_fails_the_room(first_page: int, pages: int):
    (sender,) = Pair().senders
    sender.on_plan(plan(opened(3 * SIZE)))
    granted = tuple(PageId(20 + index) for index in range(pages))
    assert sender.on_event(Grant("d0", ROOM, RankId(0), first_page, granted)) == [FAILED]


def test_each_layer_follows_the_grant_of_the_rank_that_owns_it():
    pair = Pair(decode=(1, 1))
    (sender,) = pair.senders
    sender.on_plan(plan(opened(8)))
    sender.on_event(Grant("d0", ROOM, RankId(0), 0, (PageId(20), PageId(21))))
    sender.on_event(Grant("d0", ROOM, RankId(1), 1, (PageId(31),)))
    sender.on_plan(plan(tick=1, rows=(row(0, 8, 8),)))
    first, second = (posts(sender.on_event(LayerRan(Tick(1), LayerId(layer))))[0] for layer in (0, 1))
    assert (first.rank, first.blocks) == (0, ((10, 20), (11, 21)))
    assert (second.rank, second.blocks) == (1, ((11, 31),))


def chunks_of(prompt: int, hit: int, sizes: list[int]) -> list[Row]:
    """Rows of these sizes, over and over, behind `hit` cached pages; at least one token is computed."""
    start, rows = min(hit, (prompt - 1) // SIZE) * SIZE, []
    while start < prompt:
        end = min(prompt, start + sizes[len(rows) % len(sizes)])
        rows.append(row(start, end, prompt))
        start = end
    return rows


SIZES = st.lists(st.integers(1, 17), min_size=1)


@given(st.integers(1, 40), st.integers(0, 10), SIZES)
def test_chunks_of_any_size_complete_every_page_once_and_cover_every_token(prompt: int, hit: int, sizes: list[int]):
    pages: list[int] = []
    for each in chunks_of(prompt, hit, sizes):
        chunk = completed_pages(each, len(pages), SIZE)
        assert chunk.first_page == len(pages)
        pages += chunk.pages
        assert chunk.last == min(len(pages) * SIZE, prompt)
        assert chunk.last <= each.end, "no page is sent before its tokens are there"
    assert pages == [10 + index for index in range(-(-prompt // SIZE))]


@given(st.integers(1, 40), st.integers(0, 10), st.integers(0, 10), SIZES)
def test_with_any_hits_on_both_sides_every_granted_page_is_sent_once(
    prompt: int, ours: int, theirs: int, sizes: list[int]
):
    first_page, whole = min(theirs, (prompt - 1) // SIZE), -(-prompt // SIZE)
    sent = sent_by(sender_granted(first_page, whole - first_page), chunks_of(prompt, ours, sizes))
    blocks = [block for each, _ in sent for block in each]
    assert blocks == [(10 + page, 20 + page) for page in range(first_page, whole)]
    tokens = [token for _, commit in sent for token in range(commit.first, commit.last)]
    assert tokens == list(range(first_page * SIZE, prompt))


# both ends


PARTITIONS = st.sampled_from([(4,), (2, 2), (1, 3), (3, 1), (1, 2, 1), (1, 1, 1, 1)])


@given(PARTITIONS, PARTITIONS, st.integers(1, 20), st.integers(1, 20), st.randoms(use_true_random=False))
def test_whatever_order_things_arrive_in_every_receiver_has_it_all_and_every_sender_is_quiet(
    prefill: tuple[int, ...], decode: tuple[int, ...], prompt: int, chunk: int, rng
):
    pair = Pair(prefill, decode)
    pair.opened(prompt)
    facts: dict[str, list[Effect]] = {}
    flying = list(launched(pair, prompt, chunk))
    commits = []
    while flying or commits:
        if commits and (not flying or rng.random() < 0.5):
            sent = commits.pop(rng.randrange(len(commits)))
            assert pair.receivers[sent.rank].open_rooms() == 1
            facts.setdefault(f"d{sent.rank}", []).extend(pair.receivers[sent.rank].on_event(sent.message))
            continue
        rank, event = flying.pop(0 if isinstance(flying[0][1], LayerRan | Ran) else rng.randrange(len(flying)))
        effects = pair.senders[rank].on_event(event)
        flying += [(rank, Moved(post.ticket, Written.OK)) for post in posts(effects)]
        commits += told(effects)
        facts.setdefault(f"p{rank}", []).extend(each for each in effects if isinstance(each, Observe))
    expected = {f"p{rank}": [QUIET] for rank in range(len(prefill))}
    assert facts == expected | {f"d{rank}": [LANDED] for rank in range(len(decode))}


def launched(pair: Pair, prompt: int, chunk: int):
    """Launch every chunk on every sender; yield what their engines will tell, in order for each rank."""
    for tick, start in enumerate(range(0, prompt, chunk), start=1):
        chunk_row = row(start, min(prompt, start + chunk), prompt)
        for rank, sender in enumerate(pair.senders):
            assert sender.on_plan(plan(tick=tick, rows=(chunk_row,))) == []
            yield from ((rank, LayerRan(Tick(tick), LayerId(layer))) for layer in range(*pair.prefill.layers(rank)))
            yield rank, Ran(Tick(tick), ())


def test_a_commit_for_a_room_that_has_gone_says_nothing():
    (receiver,) = Pair().receivers
    assert receiver.on_event(Commit(ROOM, LayerId(0), 0, 8)) == []


def test_a_lost_peer_fails_a_room_whose_kv_is_on_its_way_but_not_one_that_has_landed():
    pair = Pair(decode=(1, 1))
    pair.grant(8)
    landed, waiting = pair.receivers
    assert landed.on_event(Commit(ROOM, LayerId(0), 0, 8)) == [LANDED]
    landed.on_event(FirstToken(ROOM, 7))
    assert landed.on_event(PeerLost("p0", RankId(0))) == []
    assert waiting.on_event(PeerLost("p0", RankId(0))) == [FAILED]


def test_forgotten_rooms_leave_nothing_on_either_side():
    pair = Pair()
    pair.opened(8)
    for one in (*pair.senders, *pair.receivers):
        assert one.open_rooms() == 1
        one.on_plan(plan(Forgotten(ROOM)))
        assert one.open_rooms() == 0


def test_a_room_that_stops_after_it_became_quiet_stays_quiet():
    sender = ready_sender(4)
    sender.on_plan(plan(tick=1, rows=(row(0, 4, 4),)))
    for layer in (0, 1):
        (post,) = sender.on_event(LayerRan(Tick(1), LayerId(layer)))
        sender.on_event(Moved(post.ticket, Written.OK))
    assert sender.on_event(Ran(Tick(1), ())) == [QUIET]
    assert sender.on_plan(plan(Stopped(ROOM), tick=2)) == []
    assert sender._sessions[ROOM].state is SendState.QUIET


# what the decode group has already


def test_a_receiver_waits_only_for_the_tokens_that_are_not_here():
    (receiver,) = Pair().receivers
    receiver.answer(ASK)
    (sent,) = told(receiver.on_plan(plan(Granted(ROOM, "p0", 10, 1, (PageId(21), PageId(22))))))
    assert sent.message == Grant("d0", ROOM, RankId(0), 1, (PageId(21), PageId(22)))
    assert receiver.on_event(Commit(ROOM, LayerId(0), 4, 10)) == []
    assert receiver.on_event(Commit(ROOM, LayerId(1), 4, 8)) == []
    assert receiver.on_event(Commit(ROOM, LayerId(1), 8, 10)) == [LANDED]


# copies to host memory

RETRACT, RESUME = Ask(Question.RETRACT, ROOM), Ask(Question.RESUME, ROOM)
RETRACTED = Retracted(ROOM, (PageId(20), PageId(21)), (PageId(5), PageId(6)))
RESUMED = Resumed(ROOM, (PageId(5), PageId(6)), (PageId(30), PageId(31)))


def landed_receiver() -> KVReceiver:
    pair = Pair()
    pair.grant(8)
    (receiver,) = pair.receivers
    receiver.on_event(Commit(ROOM, LayerId(0), 0, 8))
    assert receiver.on_event(Commit(ROOM, LayerId(1), 0, 8)) == [LANDED]
    return receiver


def backed_up(times: int) -> Observe:
    return Observe(ROOM, Fact(Progress.SUCCESS, backups=times))


def test_a_room_is_copied_at_the_commit_of_the_vote_and_its_landing_stays_known():
    receiver = landed_receiver()
    assert receiver.answer(RETRACT)
    assert receiver.on_plan(plan(RETRACTED)) == [BackUp(ROOM, RETRACTED.pages, RETRACTED.host_pages)]
    assert receiver.on_event(BackedUp(ROOM)) == [backed_up(1)]


def test_a_copy_is_readable_when_it_is_done():
    receiver = landed_receiver()
    assert not receiver.answer(RESUME)
    receiver.on_plan(plan(RETRACTED))
    assert not receiver.answer(RESUME)
    receiver.on_event(BackedUp(ROOM))
    assert receiver.answer(RESUME)
    assert receiver.on_plan(plan(RESUMED)) == [Restore(ROOM, RESUMED.host_pages, RESUMED.pages)]


def test_every_copy_of_a_room_is_counted():
    receiver = landed_receiver()
    for times in (1, 2, 3):
        assert receiver.answer(RETRACT)
        receiver.on_plan(plan(RETRACTED))
        assert receiver.on_event(BackedUp(ROOM)) == [backed_up(times)]
        assert receiver.answer(RESUME)
        receiver.on_plan(plan(RESUMED))
        assert not receiver.answer(RESUME)


def test_a_receiver_says_no_about_a_room_that_it_does_not_have():
    (receiver,) = Pair().receivers
    assert not receiver.answer(RETRACT)
    assert not receiver.answer(RESUME)


def test_a_lost_peer_does_not_fail_a_room_that_was_copied():
    receiver = landed_receiver()
    receiver.on_event(FirstToken(ROOM, 7))
    for note in (RETRACTED, RESUMED):
        receiver.on_plan(plan(note))
        assert receiver.on_event(PeerLost("p0", RankId(0))) == []
        if note is RETRACTED:
            receiver.on_event(BackedUp(ROOM))


def test_a_receiver_is_not_asked_about_facts():
    with pytest.raises(IllegalTransition, match="facts"):
        landed_receiver().answer(Ask(Question.LANDED, ROOM))
