"""What rank 0 gathers for its next frame, and what a combined fact entails."""

from consensus.leader import Leader, conclusions
from tandem.core.ids import RequestId, Room, Slot, Tick
from tandem.core.inputs import MAX_ARRIVALS, Abort, FirstToken, Harvest, Kind, Outcome, Verdict
from tandem.core.messages import Fact, Progress
from tandem.core.requests import Reason

A, B = (Room(RequestId(number), 1) for number in (1, 2))
KINDS = (Kind.BOOTSTRAPPED, Kind.FAILED, Kind.QUIET, Kind.BACKED_UP)


def test_an_empty_leader_has_nothing_to_say():
    leader = Leader(KINDS)
    assert not leader.waiting
    frame = leader.take(Tick(0), Slot(0), 5)
    assert (frame.arrivals, frame.verdicts, frame.harvests, frame.ballots) == ((), (), (), ())


def test_everything_gathered_is_in_one_frame_and_only_in_one():
    leader = Leader(KINDS)
    leader.arrive(FirstToken(A, 7))
    leader.conclude(Verdict(B, Kind.QUIET))
    leader.harvest(Harvest(Tick(3), ()))
    leader.ballot(Outcome(Tick(2), 1))
    assert leader.waiting
    assert leader.returned == {3}
    frame = leader.take(Tick(4), Slot(1), 9)
    assert frame.arrivals == (FirstToken(A, 7),)
    assert frame.verdicts == (Verdict(B, Kind.QUIET),)
    assert frame.harvests == (Harvest(Tick(3), ()),)
    assert frame.ballots == (Outcome(Tick(2), 1),)
    assert not leader.waiting
    assert leader.returned == frozenset()


def test_arrivals_keep_their_order_and_overflow_into_the_next_frame():
    leader = Leader(KINDS)
    aborts = [Abort(Room(RequestId(number), 1), Reason.CLIENT_GONE) for number in range(MAX_ARRIVALS + 3)]
    for abort in aborts:
        leader.arrive(abort)
    first, second = leader.take(Tick(0), Slot(0), 0), leader.take(Tick(1), Slot(0), 0)
    assert len(first.arrivals) == MAX_ARRIVALS
    assert [*first.arrivals, *second.arrivals] == aborts


def test_a_verdict_is_issued_once():
    leader = Leader(KINDS)
    leader.conclude(Verdict(A, Kind.FAILED))
    leader.conclude(Verdict(A, Kind.FAILED))
    assert leader.take(Tick(0), Slot(0), 0).verdicts == (Verdict(A, Kind.FAILED),)
    leader.conclude(Verdict(A, Kind.FAILED))
    assert not leader.waiting


def test_fate_and_quiet_are_two_verdicts():
    leader = Leader(KINDS)
    leader.conclude(Verdict(A, Kind.FAILED))
    leader.conclude(Verdict(A, Kind.QUIET))
    assert leader.take(Tick(0), Slot(0), 0).verdicts == (Verdict(A, Kind.FAILED), Verdict(A, Kind.QUIET))


def test_a_kind_that_the_role_has_no_use_for_is_no_verdict():
    leader = Leader(KINDS)
    leader.conclude(Verdict(A, Kind.TRANSFERRED))
    assert not leader.waiting


def test_nothing_is_kept_of_a_forgotten_room():
    leader = Leader(KINDS)
    leader.conclude(Verdict(A, Kind.QUIET))
    leader.forget(A)
    leader.forget(B)
    assert leader._issued == {}


def test_time_never_runs_backwards():
    leader = Leader(KINDS)
    assert [leader.take(Tick(tick), Slot(0), now).now_ms for tick, now in enumerate((5, 9, 3, 12))] == [5, 9, 9, 12]


def backed_up(nth: int) -> Verdict:
    return Verdict(A, Kind.BACKED_UP, nth)


def test_every_backup_of_a_room_is_a_verdict_once_and_in_order():
    leader = Leader(KINDS)
    for backups in (1, 1, 3, 2, 3):
        for verdict in conclusions(A, Fact(backups=backups)):
            leader.conclude(verdict)
    assert leader.take(Tick(0), Slot(0), 0).verdicts == (backed_up(1), backed_up(2), backed_up(3))
    assert not leader.waiting


def test_a_backup_that_a_frame_has_brought_is_not_brought_again_by_the_next_one():
    leader = Leader(KINDS)
    leader.conclude(backed_up(1))
    assert leader.take(Tick(0), Slot(0), 0).verdicts == (backed_up(1),)
    for nth in (1, 2):
        leader.conclude(backed_up(nth))
    assert leader.take(Tick(1), Slot(0), 0).verdicts == (backed_up(2),)


def entailed(fact: Fact) -> list[Kind]:
    verdicts = conclusions(A, fact)
    assert all(verdict.room == A for verdict in verdicts)
    return [verdict.kind for verdict in verdicts]


def test_what_a_fact_entails():
    assert entailed(Fact()) == []
    assert entailed(Fact(Progress.WAITING_FOR_INPUT)) == [Kind.BOOTSTRAPPED]
    assert entailed(Fact(Progress.TRANSFERRING, failed=True)) == [Kind.BOOTSTRAPPED, Kind.FAILED]
    assert entailed(Fact(Progress.SUCCESS)) == [Kind.BOOTSTRAPPED, Kind.TRANSFERRED]
    assert conclusions(A, Fact(backups=2)) == [backed_up(1), backed_up(2)]


def test_bad_news_comes_before_the_quiet_that_frees():
    everything = entailed(Fact(Progress.SUCCESS, failed=True, quiet=True, backups=1))
    assert everything.index(Kind.FAILED) < everything.index(Kind.QUIET)
