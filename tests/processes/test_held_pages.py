"""Pages that are held for a peer which says nothing: an operator sees them, and has them given back."""

import pytest
from cluster import Cluster
from faults import acted, all_given_back, answered_right, faulty, fenced, over, story
from waiting import eventually

from kvtransfer.transports.faulty import Fault
from tandem import cli

PROMPT = list(b"some of this is written, and nobody can tell whether the rest still lands")
NEVER = ("--quiesce-ms", "3600000")
HELD = 5
"""Pages of the prompt."""

pytestmark = pytest.mark.usefixtures("no_other_cluster")


def listed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """What `tandem kv ls` prints of each room: group, peer and pages."""
    capsys.readouterr()
    assert cli.run(["kv", "ls", "--admin-url", cluster.admin_url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    if lines == [["no", "group", "holds", "pages", "for", "another", "one"]]:
        return []
    assert lines[0][:4] == ["group", "request", "peer", "pages"]
    return sorted([line[0], line[1], line[2], line[3]] for line in lines[1:])


def release(cluster: Cluster, group: str, peer: str) -> None:
    assert cli.run(["kv", "release", group, peer, "--admin-url", cluster.admin_url]) == 0


@pytest.mark.parametrize(
    ("fault", "backend"), [(Fault.FAIL_UNSETTLED, "mooncake"), (Fault.LAND_LATE, "mooncake"), (Fault.LAND_LATE, "shm")]
)
@pytest.mark.parametrize("prefill_first", [False, True], ids=["by decode", "by prefill, then by decode"])
def test_pages_that_are_held_are_listed_and_released(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prefill_first: bool,
    fault: Fault,
    backend: str,
) -> None:
    """Decode's fence proves to both that nothing lands any more, prefill's own only that nothing of it is read."""
    with faulty(monkeypatch, {2: fault}, *NEVER, *over(backend)) as cluster:
        assert listed(cluster, capsys) == []
        request_id = answered_right(cluster, PROMPT)
        room = f"{request_id.removeprefix('cmpl-')}.1"
        held = [["d0", room, "p0", str(HELD)], ["p0", room, "d0", str(HELD)]]
        eventually(lambda: listed(cluster, capsys) == held, "the first attempt's pages are held on both sides")
        acted(cluster, fault)
        answered_right(cluster, PROMPT)
        assert listed(cluster, capsys) == held, "nothing but a fence frees them"
        if prefill_first:
            release(cluster, "p0", "d0")
            eventually(lambda: listed(cluster, capsys) == held[:1], "prefill has its own back")
        release(cluster, "d0", "p0")
        eventually(lambda: listed(cluster, capsys) == [], "they are given back")
        all_given_back(cluster)
        for rank in ("d0.0", "d0.1"):
            eventually(lambda line=f"{rank} p0 is fenced off": line in cluster.stderr(), "it took a fence")
        # Which of the two concludes that for the room, and so tells the other, is left to chance.
        _, second = story(cluster, request_id, fault).attempts
        assert fenced(second) == set()
        answered_right(cluster, PROMPT)
