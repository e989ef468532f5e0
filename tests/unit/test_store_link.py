"""The store's two ends over a real socket: joining, facts to rank 0, and silence that is noticed and named."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from waiting import eventually

from consensus import store_link
from consensus.store_link import FollowerStore, LeaderStore, PPConsensusStore
from tandem.core.config import Limits
from tandem.core.ids import Epoch, RankId, RequestId, Room
from tandem.core.messages import Fact, Facts, Formed, Heartbeat, Join, Progress
from tandem.runtime.links import Sockets, encode, post

ROOM, OTHER = Room(RequestId(1), 1), Room(RequestId(2), 1)
READY, DONE = Fact(Progress.WAITING_FOR_INPUT), Fact(Progress.SUCCESS, quiet=True)
PATIENT, HASTY = 20.0, 0.1
"""Timer scales: nobody is ever silent for so long; and silence is soon noticed."""


def join(rank: int, incarnation: int = 1, fingerprint: str = "f") -> Join:
    return Join(RankId(rank), incarnation, 1_000, Limits(num_pages=64), fingerprint)


class Heard:
    """A listener that keeps what it was told, in order."""

    def __init__(self) -> None:
        self.formed: list[Formed] = []
        self.combined: list[tuple[Room, Fact | None]] = []
        self.lost: list[str] = []

    def on_formed(self, formed: Formed) -> None:
        self.formed.append(formed)

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        self.combined.append((room, fact))

    def on_lost(self, cause: str) -> None:
        self.lost.append(cause)


class Ring:
    """A group's store links in this process, over unix sockets."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.chmod(0o700)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: Sockets[zmq.Socket[bytes]] = Sockets(self.context, b"")
        self.socket, self.address = self.sockets.bind(zmq.ROUTER, str(run_dir), "leader")
        self.stores: list[PPConsensusStore] = []

    def leader(self, size: int = 2, scale: float = PATIENT) -> tuple[LeaderStore, Heard]:
        heard = Heard()
        return self._started(LeaderStore(self.socket, size, join(0), heard, scale)), heard

    def follower(self, joins: Join | None = None, scale: float = PATIENT) -> tuple[FollowerStore, Heard]:
        heard = Heard()
        return self._started(FollowerStore(self.dealer(), joins or join(1), heard, scale)), heard

    def dealer(self) -> "zmq.Socket[bytes]":
        return self.sockets.connect(zmq.DEALER, self.address)

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
    monkeypatch.setattr(store_link, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(store_link, "JOIN_S", 0.02)
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
    heard_s = follower._heard_s
    eventually(lambda: follower._heard_s > heard_s)
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
    assert set(heard.lost) == {"rank 1 came back as another process"}
    assert at_successor.formed == []
    assert len(at_follower.formed) == 1


def test_a_rank_with_another_model_cannot_join(ring: Ring) -> None:
    _, heard = ring.leader()
    ring.follower(join(1, fingerprint="other"))
    assert "rank 0 has fingerprint f, rank 1 has other" in eventually(lambda: heard.lost)[0]
    assert heard.formed == []


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
    ]
    for word in words:
        ring.say(stranger, word)
    eventually(lambda: leader.strangers == len(words))
    assert set(leader._heard_s) == {0, 1}
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
