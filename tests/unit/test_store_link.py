"""The store's two ends over a real socket: joining, facts to rank 0, and silence that is noticed and named."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from waiting import eventually

from consensus import link, stall
from consensus.pulse import Pulse
from consensus.store_link import FollowerStore, LeaderStore, PPConsensusStore
from tandem.core.config import Limits
from tandem.core.ends import End, EndKind
from tandem.core.ids import Epoch, RankId, RequestId, Room
from tandem.core.messages import EpochEnded, Fact, Facts, Formed, FromLeader, Heartbeat, Join, Leaving, Progress
from tandem.runtime.links import Inbox, Sockets, encode, post

ROOM, OTHER = Room(RequestId(1), 1), Room(RequestId(2), 1)
READY, DONE = Fact(Progress.WAITING_FOR_INPUT), Fact(Progress.SUCCESS, quiet=True)
PATIENT, HASTY = 20.0, 0.1
"""Timer scales: nobody is ever silent for so long; and silence is soon noticed."""


def join(rank: int, incarnation: int = 1, fingerprint: str = "f", known: int = 0) -> Join:
    return Join(RankId(rank), incarnation, 1_000, Limits(num_pages=64), fingerprint, Epoch(known))


class Heard:
    """A listener that keeps what it was told, in order."""

    def __init__(self) -> None:
        self.formed: list[Formed] = []
        self.combined: list[tuple[Room, Fact | None]] = []
        self.over: list[EpochEnded] = []
        self.refused: list[str] = []
        self.leaving: list[int] = []

    def on_formed(self, formed: Formed) -> None:
        self.formed.append(formed)

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        self.combined.append((room, fact))

    @property
    def lost(self) -> list[str]:
        return [word.end.cause for word in self.over]

    def on_over(self, word: EpochEnded) -> None:
        self.over.append(word)

    def on_refused(self, cause: str) -> None:
        self.refused.append(cause)

    def on_leaving(self, rank: RankId) -> None:
        self.leaving.append(rank)


class Ring:
    """A group's store links in this process, over unix sockets."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.chmod(0o700)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: Sockets[zmq.Socket[bytes]] = Sockets(self.context, b"")
        self.socket, self.address = self.sockets.bind(zmq.ROUTER, str(run_dir), "leader")
        self.stores: list[PPConsensusStore] = []
        self.pulses: dict[int, Pulse] = {}

    def leader(self, size: int = 2, scale: float = PATIENT, joins: Join | None = None) -> tuple[LeaderStore, Heard]:
        heard = Heard()
        return self._started(LeaderStore(self.socket, size, joins or join(0), heard, self.pulse(0), scale)), heard

    def follower(self, joins: Join | None = None, scale: float = PATIENT) -> tuple[FollowerStore, Heard]:
        heard, joins = Heard(), joins or join(1)
        return self._started(FollowerStore(self.dealer(), joins, heard, self.pulse(joins.rank), scale)), heard

    def pulse(self, rank: int) -> Pulse:
        """Of a rank without a tick loop: it would hang."""
        self.pulses[rank] = Pulse(time.monotonic() + 1e6)
        return self.pulses[rank]

    def dealer(self) -> "zmq.Socket[bytes]":
        return self.sockets.connect(zmq.DEALER, self.address, last_words=True)

    def say(self, socket: "zmq.Socket[bytes]", message: Any) -> None:
        eventually(lambda: post(socket, encode(message)))

    def stop(self, store: PPConsensusStore) -> None:
        self.stores.remove(store)
        store.stop()

    def _started(self, store: Any) -> Any:
        self.stores.append(store)
        store.start()
        return store

    def formed(self, scale: float = PATIENT) -> tuple[LeaderStore, Heard, FollowerStore, Heard]:
        """A ring of two that has formed."""
        leader, at_leader = self.leader(2, scale)
        follower, at_follower = self.follower(scale=scale)
        eventually(lambda: at_leader.formed and at_follower.formed)
        return leader, at_leader, follower, at_follower


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    monkeypatch.setattr(link, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(link, "JOIN_S", 0.02)
    with ExitStack() as undo:
        made = Ring(tmp_path)
        undo.callback(made.context.term)
        undo.callback(made.sockets.close)
        undo.callback(lambda: [store.stop() for store in made.stores])
        yield made


def last(heard: Heard, room: Room = ROOM) -> Callable[[], Fact | None]:
    return lambda: dict(heard.combined).get(room)


def test_a_ring_of_one_forms_by_itself(ring: Ring) -> None:
    leader, heard = ring.leader(1)
    (formed,) = eventually(lambda: heard.formed)
    assert formed.num_pages == 64
    leader[ROOM] = READY
    eventually(lambda: heard.combined == [(ROOM, READY)])


def test_all_ranks_hear_of_the_same_epoch_once(ring: Ring) -> None:
    leader, at_leader = ring.leader()
    assert leader.missing == [0, 1] or leader.missing == [1]
    _, at_follower = ring.follower()
    eventually(lambda: at_leader.formed and at_follower.formed)
    assert at_leader.formed == at_follower.formed
    assert leader.missing == []
    assert at_leader.formed[0].incarnations == (1, 1)


def test_rank_0_hears_what_all_ranks_know(ring: Ring) -> None:
    leader, heard, follower, _ = ring.formed()
    follower[ROOM] = DONE
    eventually(lambda: heard.combined == [(ROOM, Fact())])
    leader[ROOM] = READY
    eventually(lambda: last(heard)() == READY)
    leader[ROOM] = DONE
    eventually(lambda: last(heard)() == DONE)
    del leader[ROOM]
    del follower[ROOM]
    eventually(lambda: heard.combined[-1] == (ROOM, None))
    eventually(lambda: len(leader) == len(follower) == leader.unacked_age_ms() == follower.unacked_age_ms() == 0)


def test_bad_news_needs_anyone(ring: Ring) -> None:
    _, heard, follower, _ = ring.formed()
    follower[OTHER] = Fact(failed=True)
    eventually(lambda: heard.combined == [(OTHER, Fact(failed=True))])


def test_as_long_as_both_speak_nobody_is_lost(ring: Ring) -> None:
    """Rank 0 answers heartbeats, or a follower would lose it."""
    _, at_leader, follower, at_follower = ring.formed()
    heard_s = follower._silence._heard_s[RankId(0)]
    eventually(lambda: follower._silence._heard_s[RankId(0)] > heard_s)
    assert (at_leader.lost, at_follower.lost) == ([], [])


def test_a_rank_that_falls_silent_is_named(ring: Ring) -> None:
    _, heard, follower, _ = ring.formed(HASTY)
    ring.stop(follower)
    assert eventually(lambda: heard.lost)[0].startswith("rank 1 was silent for")


def test_a_follower_notices_that_rank_0_is_gone(ring: Ring) -> None:
    leader, _, _, heard = ring.formed(HASTY)
    ring.stop(leader)
    assert eventually(lambda: heard.lost)[0].startswith("rank 0 was silent for")


def test_a_rank_that_comes_back_is_another_process(ring: Ring) -> None:
    """Its memory is gone, so the epoch is."""
    _, heard, _, at_follower = ring.formed()
    _, at_successor = ring.follower(join(1, incarnation=2))
    eventually(lambda: heard.lost)
    assert [word.end for word in heard.over] == [End("rank 1 came back as another process", EndKind.REPLACED)]
    assert at_successor.formed == []
    assert len(at_follower.formed) == 1


def test_a_rank_that_has_outlived_the_epoch_says_why_it_is_over(ring: Ring) -> None:
    """To a rank 0 that was frozen: the last word may come later, or not at all."""
    _, heard, follower, _ = ring.formed()
    ring.stop(follower)
    again = join(1, incarnation=2, known=heard.formed[0].epoch)
    ring.follower(msgspec.structs.replace(again, last_end=End("rank 0 was silent", EndKind.SILENT)))
    eventually(lambda: heard.over)
    assert [word.end for word in heard.over] == [End("rank 0 was silent", EndKind.SILENT)]


def test_a_rank_with_another_model_cannot_join_and_is_told_so(ring: Ring) -> None:
    """The others go on waiting for one that fits."""
    leader, heard = ring.leader()
    _, at_other = ring.follower(join(1, fingerprint="other"))
    assert "rank 0 has fingerprint f, rank 1 has other" in eventually(lambda: at_other.refused)[0]
    assert leader.refusal == at_other.refused[0]
    assert (heard.over, heard.refused, heard.formed, at_other.over) == ([], [], [], [])
    ring.follower()
    eventually(lambda: heard.formed)


def test_a_rank_0_that_was_started_otherwise_than_those_who_have_served_is_the_one_that_is_wrong(ring: Ring) -> None:
    _, heard = ring.leader()
    _, at_survivor = ring.follower(join(1, fingerprint="other", known=7))
    assert "rank 0 has fingerprint f, rank 1 has other" in eventually(lambda: heard.refused)[0]
    assert at_survivor.refused == []


def test_the_epoch_is_above_the_last_one_whatever_the_clocks_say(ring: Ring) -> None:
    known = 1 << 62
    _, heard = ring.leader(joins=join(0, known=known))
    ring.follower()
    assert eventually(lambda: heard.formed)[0].epoch == known + 1


@pytest.mark.parametrize("finder", [0, 1, 2])
def test_whoever_finds_that_the_epoch_is_over_all_others_hear_the_same_words(ring: Ring, finder: int) -> None:
    leader, at_leader = ring.leader(3)
    one, at_one = ring.follower()
    two, at_two = ring.follower(join(2))
    eventually(lambda: at_leader.formed and at_one.formed and at_two.formed)
    stores: list[PPConsensusStore] = [leader, one, two]
    end = End("it is divergent", EndKind.DIVERGED)
    stores[finder].end(end)
    others = [heard for rank, heard in enumerate((at_leader, at_one, at_two)) if rank != finder]
    eventually(lambda: all(heard.over for heard in others))
    word = EpochEnded(at_leader.formed[0].epoch, RankId(finder), end)
    assert [heard.over for heard in others] == [[word], [word]]


def test_the_last_word_leaves_before_the_link_does(ring: Ring) -> None:
    leader, _, _, at_follower = ring.formed()
    leader.end(End("rank 0 was told to end", EndKind.LEFT))
    ring.stop(leader)
    (word,) = eventually(lambda: at_follower.over)
    assert word.end == End("rank 0 was told to end", EndKind.LEFT)
    assert word.end.left


def test_who_was_frozen_hears_the_last_word_when_the_link_is_long_gone(ring: Ring) -> None:
    leader, heard = ring.leader()
    frozen = ring.dealer()
    ring.say(frozen, join(1))
    eventually(lambda: heard.formed)
    leader.end(End("rank 1 was silent"))
    ring.stop(leader)
    inbox: Inbox[FromLeader] = Inbox(frozen, FromLeader)
    (word,) = eventually(lambda: [said for said in iter(inbox.receive, None) if isinstance(said, EpochEnded)])
    assert word.end == End("rank 1 was silent")


def test_only_the_first_word_counts(ring: Ring) -> None:
    leader, at_leader, follower, at_follower = ring.formed()
    leader.end(End("first"))
    leader.end(End("second"))
    eventually(lambda: at_follower.over)
    follower.end(End("third"))
    ring.stop(follower)
    ring.stop(leader)
    assert (at_leader.lost, at_follower.lost) == ([], ["first"])


def test_rank_0_hears_that_a_rank_was_told_to_end(ring: Ring) -> None:
    _, heard, follower, _ = ring.formed()
    follower.leave()
    assert eventually(lambda: heard.leaving)[0] == 1


def test_a_ring_that_stands_still_is_over_and_every_rank_reads_who_it_was(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "STALL_S", 0.0)
    _, at_leader, _, at_follower = ring.formed(1.0)
    assert at_leader.over == [], "nobody waits"
    ring.pulses[1]._awaiting = "ran(7)"
    (cause,) = eventually(lambda: at_leader.lost)
    assert "the ring stalled: rank 1, at tick -1, has awaited ran(7)" in cause
    assert eventually(lambda: at_follower.lost) == [cause]
    assert [heard.over[0].end.kind for heard in (at_leader, at_follower)] == [EndKind.STALLED] * 2


def test_strangers_say_nothing_about_the_ring(ring: Ring) -> None:
    """Words of another epoch, or of a rank that never joined, neither count as facts nor as signs of life."""
    leader, heard, _, _ = ring.formed()
    epoch, old = heard.formed[0].epoch, Epoch(heard.formed[0].epoch - 1)
    stranger = ring.dealer()
    entries = ((ROOM, DONE),)
    words = [
        Heartbeat(old, RankId(1)),
        Heartbeat(epoch, RankId(7)),
        Facts(old, RankId(1), 1, entries),
        Facts(epoch, RankId(7), 1, entries),
        Leaving(old, RankId(1)),
        EpochEnded(old, RankId(1), End("a zombie")),
    ]
    for word in words:
        ring.say(stranger, word)
    eventually(lambda: leader.strangers == len(words))
    assert set(leader._silence._heard_s) == {1}
    assert heard.combined == []
    assert heard.lost == []


def test_words_before_the_ring_has_formed_are_strange_too(ring: Ring) -> None:
    leader, heard = ring.leader()
    ring.say(ring.dealer(), Heartbeat(Epoch(1), RankId(1)))
    eventually(lambda: leader.strangers == 1)
    assert heard.lost == []


def test_a_link_that_breaks_is_a_loss(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would ever hear of a fact again."""
    _, _, follower, heard = ring.formed()

    def broken() -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(follower, "_flush", broken)
    assert "store link of rank 1 failed: RuntimeError('no more')" in eventually(lambda: heard.lost)[0]
