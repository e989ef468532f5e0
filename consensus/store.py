"""PPConsensusStore without its sockets: every rank owns a column of facts, rank 0 holds the table of all columns.

A column sends its changes with ascending sequence numbers. The table applies them in order and acknowledges what it has
applied. After a gap it waits: the acknowledgement is then overdue and the column sends a snapshot, its whole map, which
also says what was deleted.
"""

from collections.abc import Iterator

from consensus.facts import BOTTOM, join, meet
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.messages import Ack, Fact, Facts

RESYNC_MS = 1000
"""An acknowledgement overdue by this much makes the column send a snapshot."""


class Column:
    """One rank's facts, and what of them rank 0 may not know yet."""

    def __init__(self, epoch: Epoch, rank: RankId) -> None:
        self._epoch = epoch
        self._rank = rank
        self._facts: dict[Room, Fact] = {}
        self._dirty: dict[Room, None] = {}
        self._seq = 0
        self._acked = 0
        self._waiting_since_ms = 0

    def set(self, room: Room, fact: Fact) -> None:
        """Learn a fact; what is known already stays known."""
        known = self._facts.get(room)
        joined = fact if known is None else join(known, fact)
        if joined != known:
            self._facts[room] = joined
            self._dirty[room] = None

    def delete(self, room: Room) -> None:
        """Drop a room. Attempts are never reused, so nothing will speak of it again."""
        if self._facts.pop(room, None) is not None:
            self._dirty[room] = None

    def flush(self, now_ms: int) -> Facts | None:
        """The message to send now, if any: changes, or a snapshot when the acknowledgement is overdue."""
        if self.unacked_age_ms(now_ms) >= RESYNC_MS:
            return self.snapshot(now_ms)
        if self._dirty:
            changes = tuple((room, self._facts.get(room)) for room in self._dirty)
            return self._send(changes, now_ms, snapshot=False)
        return None

    def snapshot(self, now_ms: int) -> Facts:
        """The whole map; also the first message on a new connection."""
        return self._send(tuple(self._facts.items()), now_ms, snapshot=True)

    def _send(self, entries: tuple[tuple[Room, Fact | None], ...], now_ms: int, *, snapshot: bool) -> Facts:
        if self._acked == self._seq or snapshot:
            self._waiting_since_ms = now_ms
        self._dirty.clear()
        self._seq += 1
        return Facts(self._epoch, self._rank, self._seq, entries, snapshot)

    def on_ack(self, ack: Ack, now_ms: int) -> None:
        """Rank 0 has everything up to `ack.seq`. Acknowledgements of another epoch say nothing."""
        if ack.epoch == self._epoch and self._acked < ack.seq <= self._seq:
            self._acked = ack.seq
            self._waiting_since_ms = now_ms

    def unacked_age_ms(self, now_ms: int) -> int:
        """Age of the oldest update that rank 0 may not have: 0 if there is none."""
        return now_ms - self._waiting_since_ms if self._acked < self._seq else 0

    def __len__(self) -> int:
        return len(self._facts)


class Table:
    """Rank 0's view: the columns of all ranks."""

    def __init__(self, epoch: Epoch, size: int) -> None:
        self._epoch = epoch
        self._columns: tuple[dict[Room, Fact], ...] = tuple({} for _ in range(size))
        self._applied = [0] * size
        self.dropped = 0  # messages of another epoch or from no rank of this group

    def on(self, message: Facts) -> tuple[list[Room], Ack | None]:
        """Apply one update: the rooms it touched, and the acknowledgement to send back."""
        if message.epoch != self._epoch or not 0 <= message.rank < len(self._columns):
            self.dropped += 1
            return [], None
        touched = list(self._apply(message))
        return touched, Ack(self._epoch, self._applied[message.rank])

    def _apply(self, message: Facts) -> Iterator[Room]:
        applied = self._applied[message.rank]
        if message.seq <= applied or (message.seq > applied + 1 and not message.snapshot):
            return  # a duplicate, or a gap that a snapshot will close
        self._applied[message.rank] = message.seq
        column = self._columns[message.rank]
        if message.snapshot:
            kept = {room for room, _ in message.entries}
            for room in [room for room in column if room not in kept]:
                del column[room]
                yield room
        for room, fact in message.entries:
            if fact is None:
                column.pop(room, None)
            else:
                column[room] = fact
            yield room

    def combined(self, room: Room) -> Fact | None:
        """The group's fact about a room; None if no rank has one."""
        facts = [column.get(room) for column in self._columns]
        if all(fact is None for fact in facts):
            return None
        return meet(BOTTOM if fact is None else fact for fact in facts)

    def __len__(self) -> int:
        return sum(len(column) for column in self._columns)
