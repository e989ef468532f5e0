"""Tagged memory: for each page of one rank, who wrote it last; and whether cells and results are the reference's."""

from collections.abc import Iterable
from itertools import islice

import numpy as np

from tandem.core.effects import BackUp, Restore
from tandem.core.ids import LayerId, PageId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import pages_for
from tandem.ports import Memory, Sampled
from tandem.sim.client import Client
from tandem.sim.orders import Orders

Tag = tuple[Room | None, Tick]
"""Who wrote a page last, and when."""
UNWRITTEN: Tag = None, Tick(-1)


class WrongContent(Exception):
    """A page holds something else than its reader was promised, or a stage computed something else."""


class Ledger:
    """Keeps the tags of one rank's page pool."""

    def __init__(self, who: str, memory: Memory, page_size: int, client: Client, orders: Orders) -> None:
        region = memory.region
        self._who = who
        self._memory = memory
        self._layers = range(region.first_layer, region.last_layer)
        self._page_size = page_size
        self._client = client
        self._orders = orders
        self._writers: dict[PageId, Tag] = {}
        self._on_host: dict[PageId, Tag] = {}  # by host page: the tag of what was copied there
        self._read: dict[Room, None] = {}  # whose first row here has been looked at

    def wrote(self, room: Room, pages: Iterable[PageId], tick: Tick | None = None) -> None:
        """These pages are being filled for a room, by a tick or since the last one that this rank has stepped."""
        self._writers.update(dict.fromkeys(pages, (room, self._orders.tick if tick is None else tick)))

    def copied(self, copy: BackUp | Restore) -> None:
        """Tags go with what they tell of, and are no younger when they are back from host memory.

        The next row of who was copied back is looked at as if it were its first.
        """
        pairs = zip(copy.pages, copy.host_pages, strict=True)
        if isinstance(copy, BackUp):
            self._on_host.update({host_page: self._writers.get(page, UNWRITTEN) for page, host_page in pairs})
        else:
            self._writers.update({page: self._on_host[host_page] for page, host_page in pairs})
            self._read.pop(copy.room, None)

    def forget(self, room: Room) -> None:
        """The room has gone. Its tags stay as long as the pages hold what it wrote."""
        self._read.pop(room, None)

    def begin(self, plan: Plan) -> None:
        """A forward begins. A room's first row that reads what it did not compute here is checked cell by cell.

        Later rows are checked by their results, which depend on each cell they read.
        """
        for row in plan.rows:
            if row.room not in self._read:
                self._read[row.room] = None
                if row.start:
                    self._check(row)
            self.wrote(row.room, row.pages[row.start // self._page_size :], plan.tick)

    def _check(self, row: Row) -> None:
        answer = self._client.answer(row.room)
        pages = row.pages[: pages_for(row.start, self._page_size)]
        for page in pages:
            self._check_origin(page, row.room, answer.work.salt)
        if answer.content is None:
            return
        for layer in self._layers:
            blocks = [np.frombuffer(self._memory.block(LayerId(layer), page), np.uint64) for page in pages]
            cells = np.concatenate(blocks).reshape(-1, 2)[: row.start]
            wrong = (cells != answer.content.cells[layer, : row.start]).any(axis=1).nonzero()[0]
            if len(wrong):
                where = f"layer {layer}, tokens {wrong.tolist()} of the {row.start} before"
                raise WrongContent(f"{self._who}: {where} the first row of {row.room} here are not what they should be")

    def _check_origin(self, page: PageId, reader: Room, wanted: str) -> None:
        writer, tick = self._writers.get(page, UNWRITTEN)
        salt = None if writer is None else self._client.answer(writer).work.salt
        if salt != wanted:
            raise WrongContent(f"{self._who}: page {page} is read by {reader}, but {writer} wrote it, salt {salt!r}")
        if self._orders.flushed_between(tick, reader):
            raise WrongContent(f"{self._who}: page {page} is read by {reader}, but {writer} wrote it before a flush")

    def finish(self, plan: Plan, result: memoryview | Sampled) -> None:
        """A forward's hidden states or tokens are there."""
        if isinstance(result, Sampled):
            self._check_tokens(plan, result)
        else:
            self._check_hidden(plan, result)

    def _check_hidden(self, plan: Plan, result: memoryview) -> None:
        last = LayerId(self._layers.stop)
        expected = []
        for row in plan.rows:
            content = self._client.answer(row.room).content
            if content is None:
                return
            expected.append(content.hidden(last, row.start, row.end))
        if bytes(result) != b"".join(expected):
            got = iter(bytes(result))
            wrong = [
                row.room
                for row, right in zip(plan.rows, expected, strict=True)
                if bytes(islice(got, len(right))) != right
            ]
            raise WrongContent(
                f"{self._who}: tick {plan.tick} has wrong hidden states for {wrong}: it read wrong cells"
            )

    def _check_tokens(self, plan: Plan, result: Sampled) -> None:
        sampled = [row for row in plan.rows if row.samples]
        for row, tokens in zip(sampled, result.tokens, strict=True):
            answer = self._client.answer(row.room)
            if answer.content is None:
                continue
            at = row.end - len(answer.work.prompt)
            expected = tuple(answer.content.tokens[at : at + len(tokens)])
            if tokens != expected:
                raise WrongContent(
                    f"{self._who}: tick {plan.tick} samples {tokens} at position {row.end} of {row.room}, "
                    f"the reference has {expected}"
                )
