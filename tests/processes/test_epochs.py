"""Any rank may die, freeze or hang: its group says why in one voice, forms again, and serves, with its weights."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import by_hand
import pytest
import zmq
from by_hand import ByHand, pair
from fake_model import LAYERS, complete, expected, text_of
from streams import asking, events, stream
from waiting import eventually

from tandem.replay import replay
from tandem.runtime.links import Sockets
from tandem.runtime.records import Record

MODEL = f"--model=fake:{LAYERS}"
SHM = "--disaggregation-transfer-backend=shm"
HASTY = "--timer-scale=0.5"
RANKS = ("p0.0", "p0.1", "d0.0", "d0.1")
PROMPT = list(b"whoever dies, the answer stays the same")
LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True}

pytestmark = pytest.mark.usefixtures("no_other_cluster")


@pytest.fixture
def cluster() -> Iterator[ByHand]:
    """Two groups of two ranks, started by hand, and a router."""
    with pair(MODEL, SHM) as started:
        yield started


def answers_right(cluster: ByHand, tokens: int = 40) -> None:
    cluster.usable()
    answer = complete(cluster, prompt=PROMPT, max_tokens=tokens, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(PROMPT, tokens)


def other(name: str) -> str:
    """The other rank of its group."""
    group, _, rank = name.partition(".")
    return f"{group}.{1 - int(rank)}"


def epoch(cluster: ByHand, name: str) -> int:
    return int(cluster.state(name)["epoch"])


def forming(cluster: ByHand, name: str) -> None:
    """Wait until a rank has noticed that its epoch is over."""
    eventually(lambda: not cluster.state(name)["ready"], f"{name} notices")


def loaded(cluster: ByHand, name: str) -> int:
    """How often a rank has loaded its weights, in all of its processes."""
    return cluster.log(name).count("has loaded its layers")


def causes(cluster: ByHand, *, whole: bool = True) -> dict[str, str]:
    """Of all flight records, by rank; each can be re-executed, unless it is not `whole`."""
    found = {}
    for path in cluster.dumped():
        heading = Record(path).heading
        assert heading.ending is not None
        assert not whole or replay(path, None) == 0
        found[f"{heading.group.name}.{heading.rank}"] = heading.ending.cause
    return found


@pytest.mark.parametrize("victim", RANKS)
def test_a_killed_rank_is_noticed_named_and_replaced_and_the_others_keep_their_weights(
    victim: str, cluster: ByHand
) -> None:
    answers_right(cluster)
    survivor, group = other(victim), victim[:2]
    before, pid = epoch(cluster, survivor), cluster.pid(survivor)
    cluster.kill(victim)
    forming(cluster, survivor)
    assert cluster.get(survivor, "/livez")[0] == 200, "a peer's death is not its own"
    status, body = cluster.get(survivor, "/readyz")
    assert status == 503
    assert "ranks" in body["waiting_for"]
    cluster.start(victim)
    assert cluster.formed(group, above=before) > before
    answers_right(cluster)
    state = cluster.state(survivor)
    cause = f"rank {victim[-1]} was silent for 2.5 s"
    assert (state["epochs"], state["last_end"]) == (1, cause)
    assert causes(cluster) == {survivor: cause}, "the other group has nothing to do with it"
    assert cluster.running(survivor)
    assert cluster.pid(survivor) == pid
    assert loaded(cluster, survivor) == 1
    assert loaded(cluster, victim) == 2


def test_ranks_may_die_while_their_ring_forms_again(cluster: ByHand) -> None:
    answers_right(cluster)
    before = epoch(cluster, "d0.0")
    cluster.kill("d0.1")
    forming(cluster, "d0.0")
    cluster.kill("d0.0")
    cluster.start("d0.0")
    eventually(lambda: "d0.0" in cluster.members() and not cluster.members()["d0.0"].epoch, "it is back, alone")
    cluster.start("d0.1")
    eventually(lambda: loaded(cluster, "d0.1") == 2, "the other one is back")
    cluster.kill("d0.1")
    cluster.start("d0.1")
    cluster.formed("d0", above=before)
    answers_right(cluster)


@pytest.mark.parametrize("victim", ["p0.0", "d0.1"])
def test_a_rank_that_is_back_before_anybody_missed_it_is_another_process(victim: str) -> None:
    with pair(MODEL, SHM, "--timer-scale=20") as cluster:
        answers_right(cluster)
        survivor, group = other(victim), victim[:2]
        before = epoch(cluster, survivor)
        cluster.kill(victim)
        cluster.start(victim)
        cluster.formed(group, above=before)
        answers_right(cluster)
        assert cluster.state(survivor)["last_end"] == f"rank {victim[-1]} came back as another process"


@pytest.mark.parametrize("sockets", ["unix", "tcp"])
def test_the_same_over_mooncake(sockets: str) -> None:
    where = ["--bind=127.0.0.1"] if sockets == "tcp" else []
    with pair(MODEL, *where) as cluster:
        answers_right(cluster)
        for victim in ("p0.1", "d0.0"):
            before = epoch(cluster, other(victim))
            cluster.kill(victim)
            cluster.start(victim)
            cluster.formed(victim[:2], above=before)
            answers_right(cluster)


@pytest.mark.parametrize("victim", ["c0.0", "c0.1"])
def test_a_colocated_group_forms_again_too(victim: str) -> None:
    with ByHand(MODEL) as cluster:
        cluster.start("c0.0", "c0.1")
        cluster.start_router()
        before = cluster.formed("c0")
        answers_right(cluster)
        cluster.kill(victim)
        cluster.start(victim)
        cluster.formed("c0", above=before)
        answers_right(cluster)
        assert loaded(cluster, other(victim)) == 1


@pytest.mark.parametrize("victim", ["p0.1", "d0.0"])
def test_a_frozen_rank_finds_its_epoch_over_when_it_wakes_and_joins_again(victim: str, cluster: ByHand) -> None:
    answers_right(cluster)
    survivor = other(victim)
    before = epoch(cluster, survivor)
    cluster.send(victim, signal.SIGSTOP)
    forming(cluster, survivor)
    cluster.send(victim, signal.SIGCONT)
    cluster.formed(victim[:2], above=before)
    answers_right(cluster)
    cause = f"rank {victim[-1]} was silent for 2.5 s"
    assert {name: cluster.state(name)["last_end"] for name in (survivor, victim)} == {survivor: cause, victim: cause}
    assert causes(cluster) == {survivor: cause, victim: cause}
    assert loaded(cluster, victim) == loaded(cluster, survivor) == 1


@pytest.mark.parametrize("victim", ["p0.0", "d0.1"])
def test_a_frozen_rank_that_was_replaced_meanwhile_ends_and_disturbs_nobody(victim: str, cluster: ByHand) -> None:
    answers_right(cluster)
    survivor = other(victim)
    before = epoch(cluster, survivor)
    zombie = cluster.processes[victim]
    cluster.send(victim, signal.SIGSTOP)
    cluster.start(victim)
    after = cluster.formed(victim[:2], above=before)
    answers_right(cluster)
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(by_hand.LONG_S) == 3
    assert "another process has taken the place" in cluster.log(victim)
    answers_right(cluster)
    assert epoch(cluster, survivor) == after


@contextlib.contextmanager
def faulty(monkeypatch: pytest.MonkeyPatch, victim: str, fault: str, *arguments: str) -> Iterator[tuple[ByHand, Path]]:
    """A cluster with a rank that goes wrong once, as soon as the file is there."""
    with contextlib.ExitStack() as undo:
        patch = undo.enter_context(monkeypatch.context())
        now = Path(undo.enter_context(tempfile.TemporaryDirectory())) / "now"
        patch.setenv("FAULT", f"{victim} {fault} {now}")
        script = Path(by_hand.__file__).parent / "faulty_rank.py"
        cluster = undo.enter_context(pair(MODEL, SHM, *arguments, entry=(sys.executable, "-P", str(script))))
        answers_right(cluster)
        yield cluster, now


def suffers(cluster: ByHand, now: Path) -> None:
    """Let it bite, on a request of which its client is told."""
    now.touch()
    with contextlib.closing(asking(cluster, LONG)) as connection:
        assert b'"error"' in connection.getresponse().read()
    assert not now.exists(), "the fault has acted"


@pytest.mark.parametrize("victim", ["p0.1", "d0.0"])
def test_an_engine_that_hangs_is_named_and_its_process_ends(victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(monkeypatch, victim, "hang", HASTY) as (cluster, now):
        survivor = other(victim)
        before = epoch(cluster, survivor)
        suffers(cluster, now)
        assert cluster.status(victim) == 3, "it may still use its pages"
        assert "hangs after the end of its epoch" in cluster.log(victim)
        cluster.start(victim)
        cluster.formed(victim[:2], above=before)
        answers_right(cluster)
        told = causes(cluster)
        assert told.keys() == {survivor, victim}, "also the guilty one, which is idle"
        assert told[survivor] == told[victim]
        assert f"the ring stalled: rank {victim[-1]}, at tick" in told[survivor]
        assert "has awaited ran(" in told[survivor]
        assert loaded(cluster, survivor) == 1


FAULTS = {
    "fail": "the engine of {} failed: RuntimeError('it burnt')",
    "bug": "a bug on {}: RuntimeError('it burnt')",
    "thread": "thread verify of {} died: RuntimeError('it burnt')",
    "diverge": "(tick, ",
}


@pytest.mark.parametrize("victim", ["d0.0", "d0.1"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_goes_wrong_on_a_rank_ends_the_epoch_with_one_cause_and_no_process(
    fault: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty(monkeypatch, victim, fault, "--checksum-sample=1") as (cluster, now):
        before = epoch(cluster, victim)
        suffers(cluster, now)
        cluster.formed("d0", above=before)
        answers_right(cluster)
        told = causes(cluster, whole=fault != "diverge")
        assert told.keys() == {"d0.0", "d0.1"}
        assert told["d0.0"] == told["d0.1"]
        assert FAULTS[fault].format(f"d0 rank {victim[-1]}") in told[victim]
        assert [cluster.state(name)["last_end"] for name in told] == list(told.values())
        assert [loaded(cluster, name) for name in told] == [1, 1]


def test_an_engine_that_fails_at_once_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose device is gone."""
    with faulty(monkeypatch, "d0.1", "fail") as (cluster, now):
        before = epoch(cluster, "d0.0")
        garble(cluster, "d0")
        cluster.usable()
        suffers(cluster, now)
        assert cluster.status("d0.1") == 3
        cluster.start("d0.1")
        cluster.formed("d0", above=before)
        answers_right(cluster)


def garble(cluster: ByHand, *groups: str) -> None:
    """End the epochs of these groups by a message that is none, and wait until all have formed again."""
    before = {group: epoch(cluster, f"{group}.0") for group in groups}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets: Sockets[zmq.Socket[bytes]] = Sockets(context, b"")
    for group in groups:
        sockets.connect(zmq.PUSH, cluster.members()[f"{group}.1"].ring).send(b"garbage")
    for group in groups:
        cluster.formed(group, above=before[group])
    sockets.close()
    context.term()


@pytest.mark.parametrize("group", ["p0", "d0"])
def test_a_malformed_message_on_the_ring_ends_the_epoch_and_nobody_has_to_be_restarted(
    group: str, cluster: ByHand
) -> None:
    answers_right(cluster)
    garble(cluster, group)
    answers_right(cluster)
    names, cause = (
        [f"{group}.{rank}" for rank in (0, 1)],
        f"rank 1 of {group} was sent a malformed message over the ring",
    )
    assert causes(cluster) == dict.fromkeys(names, cause)
    assert [cluster.state(name)["last_end"] for name in names] == [cause, cause]
    assert [loaded(cluster, name) for name in names] == [1, 1]


def test_a_rank_that_is_started_otherwise_ends_and_the_ring_waits_for_a_right_one(cluster: ByHand) -> None:
    before = epoch(cluster, "d0.0")
    for victim, more, told in (
        ("d0.1", "--page-size=32", "give all the same"),
        ("d0.0", "--pp-partition=1,7", "give all ranks the same --pp-partition"),
    ):
        cluster.kill(victim)
        cluster.start(victim, more=[more])
        assert cluster.status(victim) == 2
        assert told in cluster.log(victim)
        cluster.start(victim)
        before = cluster.formed("d0", above=before)
    answers_right(cluster)


EPOCHS = 12
SLACK = 6
"""Connections of peers come and go. Whatever an epoch left behind would be more by now."""


def held(cluster: ByHand, name: str) -> dict[str, int]:
    """Descriptors, threads and mappings of a rank."""
    folder = Path(f"/proc/{cluster.pid(name)}")
    maps = (folder / "maps").read_text().count("\n")
    return {"files": len(os.listdir(folder / "fd")), "threads": len(os.listdir(folder / "task")), "maps": maps}


@pytest.mark.parametrize("backend", ["shm", "mooncake"])
def test_an_epoch_leaves_nothing_behind_in_those_who_survive_it(backend: str) -> None:
    with pair(MODEL, f"--disaggregation-transfer-backend={backend}") as cluster:
        garble(cluster, "p0", "d0")
        answers_right(cluster)
        first = {name: held(cluster, name) for name in RANKS}
        for _ in range(EPOCHS):
            garble(cluster, "p0", "d0")
        answers_right(cluster)

        def more() -> dict[str, Any]:
            later = {name: held(cluster, name) for name in RANKS}
            return {
                f"{what} of {name}": (was, later[name][what])
                for name, counts in first.items()
                for what, was in counts.items()
                if later[name][what] > was + SLACK
            }

        eventually(lambda: not more(), f"as much as after the first epoch, but {more()}")


# told to end


@contextlib.contextmanager
def decoding(cluster: ByHand) -> Iterator[tuple[str, HTTPResponse]]:
    """A stream whose request decodes: the beginning of its text, and where the rest comes from."""
    with stream(cluster, LONG) as response:
        first = next(events(response))["choices"][0]["text"]
        eventually(lambda: cluster.state("d0.0")["running"] == 1, "it decodes")
        yield first, response


def draining(cluster: ByHand, group: str) -> None:
    """Wait until the router has heard that a group takes nothing new."""
    eventually(lambda: (group, "draining") in [(one["name"], one["state"]) for one in cluster.workers()])


@pytest.mark.parametrize("leaver", ["d0.0", "d0.1"])
def test_a_rank_that_is_told_to_end_finishes_what_its_group_has_and_the_others_join_again(
    leaver: str, cluster: ByHand
) -> None:
    before = epoch(cluster, "d0.0")
    with decoding(cluster) as (first, response):
        cluster.send(leaver, signal.SIGTERM)
        draining(cluster, "d0")
        assert first + text_of(response) == expected(PROMPT, LONG["max_tokens"])
    assert cluster.status(leaver) == 0
    cluster.start(leaver)
    cluster.formed("d0", above=before)
    answers_right(cluster)
    assert cluster.state(other(leaver))["last_end"] == f"d0 rank {leaver[-1]} was told to end"
    assert causes(cluster) == {}, "all was in order"
    assert loaded(cluster, other(leaver)) == 1


@pytest.mark.parametrize("leaver", ["d0.0", "d0.1"])
def test_who_is_told_twice_waits_for_nothing(leaver: str, cluster: ByHand) -> None:
    with decoding(cluster) as (_, response):
        cluster.send(leaver, signal.SIGTERM)
        draining(cluster, "d0")
        cluster.send(leaver, signal.SIGTERM)
        assert cluster.status(leaver) == 0
        assert "error" in list(events(response))[-1]
    assert causes(cluster) == {}


def test_a_group_waits_for_its_requests_no_longer_than_it_was_told() -> None:
    with pair(MODEL, SHM, "--drain-s=0.2") as cluster, decoding(cluster) as (_, response):
        cluster.send("d0.1", signal.SIGTERM)
        assert cluster.status("d0.1") == 0
        assert "error" in list(events(response))[-1]
        assert cluster.state("d0.0")["last_end"] == "d0 rank 1 was told to end"


def test_all_may_be_told_at_once_also_those_who_wait_for_their_ring(cluster: ByHand) -> None:
    cluster.kill("p0.0")
    forming(cluster, "p0.1")
    left = ("p0.1", "d0.0", "d0.1")
    for name in left:
        cluster.send(name, signal.SIGTERM)
    assert [cluster.status(name) for name in left] == [0, 0, 0]
    eventually(lambda: cluster.members() == {}, "they have taken their entries away")
