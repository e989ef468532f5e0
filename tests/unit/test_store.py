"""The PPConsensusStore's columns and table over a link that loses, doubles and reorders."""

from hypothesis import given
from hypothesis import strategies as st

from consensus.facts import BOTTOM, join
from consensus.store import RESYNC_MS, Column, Table
from tandem.core.ids import Epoch, RankId, RequestId, Room
from tandem.core.messages import Ack, Fact, Facts, Progress

EPOCH = Epoch(7)
A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))
READY, SENT = Fact(Progress.WAITING_FOR_INPUT), Fact(Progress.SUCCESS, quiet=True)


def column(rank: int = 0) -> Column:
    return Column(EPOCH, RankId(rank))


def flushed(one: Column, now_ms: int = 0) -> Facts:
    message = one.flush(now_ms)
    assert message is not None
    return message


def deliver(table: Table, one: Column, now_ms: int = 0) -> list[Room]:
    touched, ack = table.on(flushed(one, now_ms))
    assert ack is not None
    one.on_ack(ack, now_ms)
    return touched


def test_nothing_new_is_nothing_to_send():
    one = column()
    assert one.flush(0) is None
    one.set(A, READY)
    assert flushed(one).entries == ((A, READY),)
    one.set(A, READY)
    one.set(A, Fact())
    assert one.flush(0) is None


def test_changes_between_two_messages_are_coalesced():
    one = column()
    one.set(A, READY)
    one.set(B, READY)
    one.set(A, SENT)
    assert flushed(one).entries == ((A, SENT), (B, READY))


def test_the_group_knows_what_every_rank_knows():
    one, other, table = column(0), column(1), Table(EPOCH, 2)
    one.set(A, SENT)
    assert deliver(table, one) == [A]
    assert table.combined(A) == Fact()
    other.set(A, READY)
    deliver(table, other)
    assert table.combined(A) == READY


def test_a_deleted_room_is_gone_when_all_ranks_have_deleted_it():
    columns, table = [column(0), column(1)], Table(EPOCH, 2)
    for one in columns:
        one.set(A, READY)
        deliver(table, one)
    columns[0].delete(A)
    assert deliver(table, columns[0]) == [A]
    assert table.combined(A) is not None
    columns[1].delete(A)
    assert deliver(table, columns[1]) == [A]
    assert table.combined(A) is None
    assert len(table) == 0


def test_a_doubled_message_is_acknowledged_but_changes_nothing():
    one, table = column(), Table(EPOCH, 1)
    one.set(A, READY)
    message = flushed(one)
    table.on(message)
    assert table.on(message) == ([], Ack(EPOCH, 1))


def test_after_a_gap_the_table_waits_for_a_snapshot():
    one, table = column(), Table(EPOCH, 1)
    one.set(A, READY)
    flushed(one)  # lost
    one.set(B, READY)
    touched, ack = table.on(flushed(one))
    assert touched == []
    assert ack == Ack(EPOCH, 0)
    one.on_ack(ack, 5)
    assert one.flush(RESYNC_MS - 1) is None
    assert deliver(table, one, RESYNC_MS) == [A, B]
    assert table.combined(A) == READY


def test_a_snapshot_also_says_what_was_deleted():
    one, table = column(), Table(EPOCH, 1)
    one.set(A, READY)
    one.set(B, READY)
    deliver(table, one)
    one.delete(A)
    flushed(one)  # lost
    assert deliver(table, one, RESYNC_MS) == [A, B]
    assert table.combined(A) is None
    assert table.combined(B) == READY


def test_a_late_update_brings_no_deleted_room_back():
    one, table = column(), Table(EPOCH, 1)
    one.set(A, READY)
    late = flushed(one)
    one.delete(A)
    flushed(one)
    one.set(B, READY)
    table.on(one.snapshot(0))
    assert table.on(late) == ([], Ack(EPOCH, 3))
    assert table.combined(A) is None


def test_a_stream_of_changes_does_not_put_off_the_snapshot():
    one, table = column(), Table(EPOCH, 1)
    one.set(A, READY)
    flushed(one)  # lost
    for number in range(10, 40):
        one.set(Room(RequestId(number), 1), READY)
        deliver(table, one, number * 100)
    assert table.combined(A) == READY


def test_another_epoch_and_a_rank_that_is_none_are_counted_and_dropped():
    table = Table(EPOCH, 2)
    strangers = [Facts(Epoch(6), RankId(0), 1, ((A, READY),))]
    strangers += [Facts(EPOCH, RankId(rank), 1, ((A, READY),)) for rank in (-1, 2)]
    for message in strangers:
        assert table.on(message) == ([], None)
    assert table.dropped == 3
    assert len(table) == 0


def test_acknowledgements_of_another_epoch_or_from_the_future_say_nothing():
    one = column()
    one.set(A, READY)
    flushed(one, 0)
    one.on_ack(Ack(Epoch(6), 1), 1)
    one.on_ack(Ack(EPOCH, 9), 1)
    assert one.unacked_age_ms(500) == 500
    one.on_ack(Ack(EPOCH, 1), 600)
    assert one.unacked_age_ms(700) == 0


ROOMS = st.sampled_from([Room(RequestId(number), 1) for number in range(6)])
FACTS = st.builds(Fact, st.sampled_from(Progress), st.booleans(), st.booleans())
DO = st.one_of(
    st.tuples(st.just("set"), ROOMS, FACTS),
    st.tuples(st.just("delete"), ROOMS),
    st.tuples(st.just("flush"), st.sampled_from(["kept", "lost", "doubled"])),
    st.tuples(st.just("deliver"), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.integers(0, 2 * RESYNC_MS)),
    st.tuples(st.just("reconnect")),
)


class Link:
    """A column and a table with a link between them that delivers any message in any order, or never."""

    def __init__(self) -> None:
        self.column, self.table = column(), Table(EPOCH, 1)
        self.known: dict[Room, Fact] = {}
        self.gone: dict[Room, int] = {}  # with the sequence number that says so
        self.flying: list[Facts] = []
        self.now_ms = 0

    def do(self, name: str, *what) -> None:
        getattr(self, name)(*what)

    def set(self, room: Room, fact: Fact) -> None:
        if room not in self.gone:  # attempts are never reused
            self.known[room] = join(self.known.get(room, BOTTOM), fact)
            self.column.set(room, fact)

    def delete(self, room: Room) -> None:
        self.known.pop(room, None)
        self.gone.setdefault(room, self.column._seq + 1)
        self.column.delete(room)

    def flush(self, fate: str) -> None:
        message = self.column.flush(self.now_ms)
        if message is not None:
            self.flying += [message] * ["lost", "kept", "doubled"].index(fate)

    def deliver(self, which: int) -> None:
        if self.flying:
            message = self.flying.pop(which % len(self.flying))
            touched, ack = self.table.on(message)
            assert ack is not None
            self.column.on_ack(ack, self.now_ms)
            assert len(touched) <= 12

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def reconnect(self) -> None:
        self.flying = [self.column.snapshot(self.now_ms)]

    def settle(self) -> None:
        """Everything that flies arrives, and what is overdue is sent again."""
        for _ in range(3):
            self.flush("kept")
            while self.flying:
                self.deliver(0)
            self.now_ms += RESYNC_MS


@given(st.lists(DO, max_size=60))
def test_whatever_the_link_does_the_table_ends_up_equal_to_the_column(steps: list[tuple]):
    link = Link()
    for step in steps:
        link.do(*step)
        told = [room for room, seq in link.gone.items() if link.table._applied[0] >= seq]
        assert not [room for room in told if link.table.combined(room)], "a deleted room has come back"
    link.settle()
    assert {room: link.table.combined(room) for room in link.known} == link.known
    assert len(link.table) == len(link.column) == len(link.known)
    assert link.column.unacked_age_ms(link.now_ms) == 0
    assert link.column.flush(link.now_ms) is None


@given(st.lists(DO, max_size=60))
def test_what_the_table_knows_of_a_room_only_grows_until_it_is_deleted(steps: list[tuple]):
    link = Link()
    for step in steps:
        before = {room: link.table.combined(room) for room in link.known}
        link.do(*step)
        for room, fact in before.items():
            after = link.table.combined(room)
            if fact is not None and room not in link.gone:
                assert after is not None
                assert join(fact, after) == after
