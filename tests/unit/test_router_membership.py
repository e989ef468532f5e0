"""When a group is usable, and what happens to its connection and its requests when that changes."""

import msgspec
import pytest

from router.membership import Connect, Drop, Lost, Membership, State
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId
from tandem.core.inputs import Order
from tandem.core.members import Member
from tandem.core.messages import Load

LOAD = Load("x", 1, 2, 3)
DRAINING = Load("x", 1, 2, 3, draining=True)


def ranks(name: str, *, size: int = 2, epoch: int = 1, incarnation: int = 1, boot_ms: int = 1, **more) -> list[Member]:
    role = {"p": RoleName.PREFILL, "d": RoleName.DECODE, "c": RoleName.COLOCATED}[name[0]]
    group = Group(role, name, (1,) * size)
    fields = {"fingerprint": "f", "model": "m", **more}
    intake = fields.pop("intake", f"ipc://{name}")
    return [
        Member(
            group, RankId(rank), incarnation, boot_ms, "h", ring="", hidden="", http="", limits=Limits(),
            intake="" if rank else intake, epoch=0 if rank else epoch, **fields,
        )
        for rank in range(size)
    ]  # fmt: skip


def states(membership: Membership) -> dict[str, State]:
    return {watched.group.name: membership.state(watched) for watched in membership.groups()}


def usable(membership: Membership) -> list[str]:
    return sorted(head.group.name for head in membership.usable())


def heard(*names: str, now: float = 0.0) -> Membership:
    """A membership in which these groups are usable."""
    membership = Membership("m")
    membership.on_members([member for name in names for member in ranks(name)], now)
    for name in names:
        membership.on_load(name, now, LOAD)
    return membership


def test_a_group_is_usable_once_all_ranks_are_there_the_ring_has_formed_and_it_was_heard():
    membership = Membership("m")
    first, second = ranks("p0", epoch=0)
    assert membership.on_members([first], 0) == []
    assert states(membership) == {"p0": State.MISSING}
    assert membership.on_members([first, second], 1) == []
    assert states(membership) == {"p0": State.FORMING}
    assert membership.on_members(ranks("p0"), 2) == [Connect("p0", "ipc://p0")]
    assert states(membership) == {"p0": State.CONNECTING}
    membership.on_load("p0", 2.5, LOAD)
    assert usable(membership) == ["p0"]
    assert membership.on_members(ranks("p0"), 3) == [], "one connection is enough"


def test_a_group_never_heard_is_not_lost_and_its_connection_stays():
    membership = Membership("m")
    membership.on_members(ranks("p0"), 0)
    for now in range(1, 60):
        assert membership.on_members(ranks("p0"), now) == []
    assert states(membership) == {"p0": State.CONNECTING}


def test_silence_is_a_loss_and_a_load_ends_it():
    membership = heard("p0")
    for now in range(1, 6):
        assert membership.on_time(now) == []
    assert membership.on_time(6) == [Lost("p0", "no sign of life for 5 s")]
    assert membership.on_time(7) == [], "a loss is told once"
    assert states(membership) == {"p0": State.SILENT}
    membership.on_load("p0", 8, LOAD)
    assert usable(membership) == ["p0"]


def test_silence_and_naps_are_measured_by_the_timer_scale():
    membership = Membership("m", timer_scale=5)
    membership.on_members(ranks("p0"), 0)
    membership.on_load("p0", 0, LOAD)
    for now in range(1, 26):
        assert membership.on_time(now) == []
    assert membership.on_time(25.5) == [Lost("p0", "no sign of life for 25 s")]
    membership.on_load("p0", 26, LOAD)
    assert membership.on_time(35) == []
    assert membership.on_time(52) == [], "17 s: it slept"


def test_a_router_that_slept_accuses_nobody():
    membership = heard("p0")
    assert membership.on_time(1) == []
    assert membership.on_time(600) == []
    assert [change for now in range(601, 607) for change in membership.on_time(now)] == [
        Lost("p0", "no sign of life for 5 s")
    ]


def test_a_group_that_somebody_saw_die_stays_lost_until_it_is_another_one():
    membership = heard("p0", "d0")
    assert membership.on_lost("p0", "exit -9") == [Lost("p0", "exit -9")]
    assert membership.on_lost("p0", "again") == []
    membership.on_load("p0", 1, LOAD)
    assert membership.on_members(ranks("p0") + ranks("d0"), 1) == []
    assert usable(membership) == ["d0"]
    assert membership.on_members(ranks("p0", epoch=2) + ranks("d0"), 2) == [Connect("p0", "ipc://p0")]
    membership.on_load("p0", 2, LOAD)
    assert usable(membership) == ["d0", "p0"]


def test_a_group_that_started_over_has_lost_its_requests():
    membership = heard("p0")
    assert membership.on_members(ranks("p0", epoch=2), 1) == [
        Lost("p0", "it started over as epoch 2"),
        Connect("p0", "ipc://p0"),
    ]
    assert [watched.load for watched in membership.groups()] == [None], "the load was its predecessor's"
    assert membership.on_members(ranks("p0", incarnation=2, epoch=2), 2) == [Connect("p0", "ipc://p0")]


def test_the_newest_entry_of_a_rank_counts():
    membership = heard("p0")
    both = ranks("p0", incarnation=2, boot_ms=9) + ranks("p0")
    assert Connect("p0", "ipc://p0") in membership.on_members(both, 1)
    assert membership.on_members(list(reversed(both)), 2) == []


@pytest.mark.parametrize("shown", [[], ranks("p0")[1:], ranks("p0")[:1]], ids=["nothing", "rank 1", "rank 0"])
def test_a_registry_that_has_forgotten_takes_nothing_from_a_group_that_talks(shown: list[Member]):
    membership = heard("p0")
    assert membership.on_members(shown, 1) == []
    assert usable(membership) == ["p0"]
    assert membership.groups()[0].ranks.keys() == {0, 1}
    assert membership.on_members(ranks("p0"), 2) == [], "it is the same one"
    assert usable(membership) == ["p0"]


def test_a_registry_that_has_forgotten_is_believed_about_groups_that_do_not_talk():
    membership = heard("p0")
    membership.on_hang_up("p0")
    assert membership.on_members(ranks("p0")[:1], 1) == []
    assert states(membership) == {"p0": State.MISSING}
    assert membership.on_members([], 2) == [Drop("p0")]
    assert states(membership) == {"p0": State.LOST}


def test_a_group_that_has_gone_is_listed_with_its_cause_for_ten_minutes():
    membership = heard("p0")
    membership.on_lost("p0", "rank 0 was killed by SIGKILL")
    assert membership.on_members([], 2) == [Drop("p0")]
    assert membership.on_members([], 600) == []
    assert [watched.lost for watched in membership.groups()] == ["rank 0 was killed by SIGKILL"]
    assert membership.on_members([], 603) == []
    assert membership.groups() == []


def test_a_group_that_comes_back_as_it_was_is_connected_to_again():
    membership = heard("p0")
    membership.on_hang_up("p0")
    assert membership.on_members([], 2) == [Drop("p0")]
    assert membership.on_members(ranks("p0"), 3) == [Connect("p0", ranks("p0")[0].intake)]
    membership.on_load("p0", 3, LOAD)
    assert usable(membership) == ["p0"]


EARLIER = {
    "an earlier epoch": ranks("p0", epoch=4, boot_ms=9),
    "a time before its first epoch": ranks("p0", epoch=0, boot_ms=9),
    "an earlier incarnation": ranks("p0", incarnation=8, epoch=4, boot_ms=8),
    "an earlier incarnation, forming": ranks("p0", incarnation=8, epoch=0, boot_ms=8),
    "an earlier epoch by a clock that was wrong": ranks("p0", incarnation=8, epoch=4, boot_ms=10),
}


@pytest.mark.parametrize("shown", EARLIER.values(), ids=EARLIER)
def test_a_registry_that_shows_what_was_takes_nothing_from_a_group_that_talks(shown: list[Member]):
    membership = Membership("m")
    membership.on_members(ranks("p0", epoch=5, boot_ms=9), 0)
    membership.on_load("p0", 0, LOAD)
    assert membership.on_members(shown, 1) == []
    assert usable(membership) == ["p0"]
    assert [head.epoch for head in membership.usable()] == [5]


def test_when_the_group_does_not_talk_any_more_any_other_is_tried():
    membership = Membership("m")
    membership.on_members(ranks("p0", epoch=5, boot_ms=9), 0)
    membership.on_load("p0", 0, LOAD)
    membership.on_hang_up("p0")
    older = ranks("p0", incarnation=8, epoch=4, boot_ms=8, intake="ipc://elsewhere")
    assert membership.on_members(older, 1) == [Connect("p0", "ipc://elsewhere")]


def test_a_group_that_forms_anew_is_given_nothing_though_it_talks():
    membership = heard("p0")
    assert membership.on_members(ranks("p0", incarnation=2, boot_ms=2, epoch=0), 1) == []
    assert states(membership) == {"p0": State.FORMING}


def test_a_broken_connection_is_a_loss_and_a_load_ends_it():
    membership = heard("p0")
    assert membership.on_hang_up("p0") == [Lost("p0", "its rank 0 hung up")]
    assert membership.on_hang_up("p0") == [], "a loss is told once"
    assert (states(membership), membership.talks("p0")) == ({"p0": State.SILENT}, False)
    membership.on_load("p0", 1, LOAD)
    assert (usable(membership), membership.talks("p0")) == (["p0"], True)
    assert membership.on_hang_up("p9") == []


def test_of_one_that_has_hung_up_the_supervisor_only_says_why():
    """It would be counted as another crash, and told as another."""
    membership = heard("p0")
    membership.on_hang_up("p0")
    (watched,) = membership.groups()
    assert (watched.cause, membership.unexplained("p0")) == ("its rank 0 hung up", True)
    assert membership.on_lost("p0", "rank 0 was killed by SIGKILL") == []
    assert (watched.cause, membership.unexplained("p0")) == ("rank 0 was killed by SIGKILL", False)
    assert states(membership) == {"p0": State.LOST}
    assert membership.on_lost("p0", "rank 1 was killed by SIGKILL") == [], "the first one tells it"
    assert watched.cause == "rank 0 was killed by SIGKILL"


def test_a_connection_that_never_was_cannot_break():
    membership = Membership("m")
    membership.on_members(ranks("p0"), 0)
    assert membership.on_hang_up("p0") == []
    assert states(membership) == {"p0": State.CONNECTING}


def test_a_loss_says_whether_somebody_wanted_it():
    assert heard("p0").on_lost("p0", "told", crashed=False) == [Lost("p0", "told", crashed=False)]


def test_a_group_that_was_draining_was_told_to_end():
    ends = {
        "vanished": lambda membership: membership.on_lost("d0", "exit 0"),
        "hung up": lambda membership: membership.on_hang_up("d0"),
        "silent": lambda membership: [change for now in range(2, 8) for change in membership.on_time(now)],
        "started over": lambda membership: membership.on_members(ranks("d0", epoch=2), 2)[:1],
    }
    for what, end in ends.items():
        membership = heard("d0")
        membership.on_time(1)
        membership.on_load("d0", 1, DRAINING)
        assert [change.crashed for change in end(membership)] == [False], what


def test_a_group_that_left_the_registry_is_dropped_when_it_is_silent():
    membership = heard("p0")
    assert membership.on_members([], 1) == [], "it still talks"
    membership.on_load("p0", 2, LOAD)
    changes = [change for now in range(3, 9) for change in membership.on_members([], now)]
    assert changes == [Lost("p0", "no sign of life for 5 s"), Drop("p0")]
    assert [watched.lost for watched in membership.groups()] == ["none of its ranks is registered any more"]


def test_messages_of_unknown_groups_change_nothing():
    membership = Membership("m")
    membership.on_load("p9", 1, LOAD)
    assert membership.on_lost("p9", "x") == []
    assert membership.groups() == []


def test_the_reason_for_no_pair_is_told():
    assert heard().why_none() == ("no_prefill", "no prefill group is usable: none is registered")
    membership = heard("p0")
    membership.on_members(ranks("p0") + ranks("d0", epoch=0) + ranks("d1", model="other"), 1)
    told = "no decode group is usable: d0 is forming its ring; d1 serves another model"
    assert membership.why_none() == ("no_decode", told)
    strange = [msgspec.structs.replace(member, fingerprint="g", engine="torch") for member in ranks("d0")]
    membership.on_members(ranks("p0") + strange, 2)
    membership.on_load("d0", 2, LOAD)
    code, text = membership.why_none()
    assert code == "incompatible_pair"
    assert "p0 has f" in text
    assert "d0 has g (engine torch)" in text


def test_the_reason_for_no_colocated_group_is_told():
    membership = Membership("m")
    membership.on_members(ranks("c0", epoch=0), 0)
    assert membership.why_none() == ("no_colocated", "no colocated group is usable: c0 is forming its ring")
    membership.on_members(ranks("c0", epoch=0) + ranks("p0"), 1)
    told = "no prefill group is usable: p0 was not heard yet; c0 is forming its ring"
    assert membership.why_none() == ("no_prefill", told)


def test_a_group_that_drains_takes_nothing_new_but_keeps_what_it_has():
    membership = heard("p0", "d0")
    membership.on_load("d0", 1, DRAINING)
    assert usable(membership) == ["p0"]
    assert states(membership)["d0"] is State.DRAINING
    assert membership.on_members(ranks("p0") + ranks("d0"), 1) == [], "it is not lost"
    assert membership.why_none() == ("draining", "no decode group is usable: d0 is draining")
    membership.on_load("d0", 2, LOAD)
    assert usable(membership) == ["d0", "p0"]


def test_who_has_sent_the_drain_knows_before_the_group_says_so():
    membership = heard("d0")
    membership.on_order("d0", Order.DRAIN)
    membership.on_load("d0", 1, LOAD)
    assert usable(membership) == [], "that load may have been on its way already"
    membership.on_load("d0", 2, DRAINING)
    membership.on_load("d0", 3, LOAD)
    assert usable(membership) == ["d0"], "another router has let it go on"
    membership.on_order("d0", Order.DRAIN)
    membership.on_order("d0", Order.FLUSH)
    assert usable(membership) == []
    membership.on_order("d0", Order.RESUME)
    assert usable(membership) == ["d0"]


def test_a_group_that_started_over_drains_no_more():
    membership = heard("d0")
    membership.on_order("d0", Order.DRAIN)
    membership.on_members(ranks("d0", epoch=2), 1)
    membership.on_load("d0", 2, LOAD)
    assert usable(membership) == ["d0"]
