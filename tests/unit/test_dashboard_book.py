"""What the dashboard keeps of the ranks' timelines: attempts, rates of edges, failures, and who is on the way."""

from desk import head

from router.dashboard import figures
from router.dashboard.book import GIVEN_UP, MOST_ROOMS, Book
from router.dashboard.meter import SPAN_S, Meter
from router.membership import Watched
from router.pieces import Clock
from router.recalled import Recalled
from tandem.core.config import Group, RoleName
from tandem.core.ids import RankId, RequestId
from tandem.runtime.history import Outline, Outlines, What

GROUPS = [
    Watched(Group(RoleName.PREFILL, "p0", (2, 2)), {RankId(0): head(RoleName.PREFILL, "p0")}),
    Watched(Group(RoleName.DECODE, "d0", (4,)), {RankId(0): head(RoleName.DECODE, "d0")}),
]
SAME = Clock(0, 100)
AT_US = 1_000_000
DECODED = {What.SUBMITTED: AT_US, What.GRANTED: AT_US + 2_000, What.DECODING: AT_US + 30_000}


def sent(rid: str, rank: int, wrote: int, **marks: int) -> Outlines:
    """What a prefill rank tells of one attempt: bytes that it wrote, and what happened so many ms after the submit."""
    happened = {What[what]: AT_US + 1_000 * ms for what, ms in marks.items()}
    outline = Outline(rid, 1, "d0", 100, marks={What.SUBMITTED: AT_US, **happened}, bytes=wrote, layers=1)
    return Outlines("p0", rank, "prefill", 0, [outline])


def received(rid: str, marks: dict[What, int] = DECODED, attempt: int = 1) -> Outlines:
    return Outlines("d0", 0, "decode", 0, [Outline(rid, attempt, "p0", 100, marks=dict(marks))])


def told(book: Book, *outlines: Outlines, now: float = 0.0, first: bool = False) -> None:
    for one in outlines:
        book.on_outlines(one, SAME, now, first=first)
    book.settle(GROUPS)


def test_a_rate_is_of_the_last_seconds():
    meter = Meter(0.0)
    meter.add(1.0, 500)
    meter.add(9.0, 500)
    assert meter.per_s(10.0) == 1000 / SPAN_S
    assert meter.per_s(12.0) == 500 / SPAN_S
    assert meter.per_s(30.0) == 0


def test_a_meter_that_is_new_counts_the_time_that_it_is_there():
    meter = Meter(0.0)
    meter.add(2.0, 600)
    assert meter.per_s(2.0) == 300


def test_an_edge_moves_what_its_ranks_have_written_since_they_were_asked():
    book = Book()
    told(book, sent("a", 0, 1000), sent("a", 1, 1000), now=0.0, first=True)
    assert book.rates(0.0) == {}, "nobody knows when that was"
    told(book, sent("a", 0, 5000), sent("a", 1, 3000), now=1.0)
    told(book, sent("b", 0, 500), now=5.0)
    assert book.rates(5.0) == {("p0", "d0"): (4000 + 2000 + 500) / 4.0}
    assert book.rates(100.0) == {("p0", "d0"): 0}


def test_an_edge_whose_group_is_not_known_any_more_is_forgotten():
    book = Book()
    told(book, sent("a", 0, 1000), now=1.0)
    book.settle(GROUPS[:1])
    assert book.rates(1.0) == {}


def test_the_oldest_attempt_goes_for_one_more():
    book = Book()
    for number in range(MOST_ROOMS + 3):
        told(book, sent(f"{number:016x}", 0, 1))
    assert len(book) == MOST_ROOMS
    assert next(about.id for about, _ in book.all()) == f"{3:016x}"


def test_an_attempt_is_on_its_way_until_decode_has_all_of_it():
    book = Book()
    told(book, sent("a", 0, 1, BOOTSTRAPPED=5), received("a", {What.SUBMITTED: AT_US}))
    assert [about.id for about, _ in book.live([])] == ["a"]
    assert book.live(["d0"]) == [], "a lost group moves nothing"
    told(book, received("a"))
    assert book.live([]) == []


def test_what_a_rank_has_forgotten_with_its_last_life_is_given_up():
    book = Book()
    book.on_incarnation("p0.0", 7)
    told(book, sent("a", 0, 1), sent("b", 0, 1, ENDED=9), received("b"))
    assert not book.on_incarnation("p0.0", 7)
    assert book.on_incarnation("p0.0", 8), "it is asked for all that it knows"
    assert book.live([]) == []
    slow = {one.id: one for one in figures.slowest(book.all(), Recalled(), AT_US)}
    assert slow["a"].failed
    assert slow["a"].state == GIVEN_UP


def test_failures_are_counted_for_the_edge_where_they_happened():
    book = Book()
    told(book, sent("a", 0, 1, FAILED_HERE=8), sent("b", 0, 1), received("b"))
    assert book.failures() == {("p0", "d0"): 1}


def nobody_waited(request_id: str) -> float:
    return 0.0


def test_the_time_to_the_first_token_is_split_in_order():
    book = Book()
    told(book, sent("a", 0, 1, BOOTSTRAPPED=5, COMPUTING=6, FIRST_TOKEN=20), received("a"))
    first = figures.first_tokens(book.all(), lambda request_id: 100.0)
    assert (first.count, first.p50_ms, first.p95_ms) == (1, 120.0, 120.0)
    parts = {"router queue": 100.0, "alloc": 2.0, "bootstrap": 3.0, "admit": 1.0, "compute": 14.0}
    assert first.parts_ms == parts
    assert sum(parts.values()) == 120.0, "nothing is left unexplained"


def test_figures_of_nothing_are_nothing():
    assert figures.spreads([]) == []
    assert figures.first_tokens([], nobody_waited).count == 0
    assert figures.slowest([], Recalled(), AT_US) == []


def test_the_slowest_are_told_after_those_that_failed():
    book = Book()
    for number, took in enumerate((10, 90, 40)):
        told(book, sent(f"{number}", 0, 1, COMPUTING=2, FIRST_TOKEN=took))
    told(book, sent("f", 0, 1, COMPUTING=2, FIRST_TOKEN=3, FAILED=8))
    told(book, sent("e", 0, 1, COMPUTING=2, FIRST_TOKEN=4))
    recalled = Recalled()
    recalled.failed(RequestId(0xE), 1, "group_lost")  # as its client was told: no rank that knew it is left
    slow = figures.slowest(book.all(), recalled, AT_US + 5_000_000)
    assert [one.id for one in slow] == ["e", "f", "1", "2", "0"]
    assert [one.failed for one in slow] == [True, True, False, False, False]
    assert slow[2].first_token_ms == 90.0
    assert slow[2].longest == "compute"
    assert slow[2].ago_s == 5.0


def test_phases_have_the_quantiles_of_what_is_over():
    book = Book()
    for number in range(100):
        told(book, sent(f"{number}", 0, 1, COMPUTING=0, FIRST_TOKEN=1 + number))
    (compute,) = [spread for spread in figures.spreads(book.all()) if spread.phase == "compute"]
    assert (compute.count, compute.p50_ms, compute.p95_ms, compute.max_ms) == (100, 51.0, 96.0, 100.0)
