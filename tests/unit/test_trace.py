"""`tandem trace`: what a request's way looks like as a picture, and what is said when there is none."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from rich.text import Text

from tandem import cli
from tandem.control import get
from tandem.core.errors import ConfigError
from tandem.runtime.history import (
    Attempt,
    Chunk,
    Entry,
    Happened,
    Landing,
    Mark,
    Outline,
    Summary,
    Transfer,
    What,
    Witnessed,
    Write,
)
from tandem.trace import WIDTH, told
from tandem.waterfall import Drawn, duration, waterfall

ID = "00000000000000ab"
START_US = 1_700_000_000_000_000
WIDE = 60 + 25 + 23 + 2
"""Makes the bar 60 columns wide: one for each millisecond of the story below."""


def at(ms: float) -> int:
    """Microseconds since 1970, so long after the start of the story."""
    return START_US + int(ms * 1_000)


def witnessed(rank: str, role: str, entries: list[Entry], **more: object) -> Witnessed:
    marks: dict[What, int] = {}
    for entry in entries:
        if isinstance(entry, Mark):
            marks.setdefault(entry.what, entry.at_us)
    given = {"offset_us": 0, "within_us": 5, "shifted": False, "dropped": 0, **more}
    return Witnessed(rank, role, outline=Outline(ID, 1, marks=marks), **given)


def attempt_of(told_by: dict[tuple[str, str], list[Entry]], groups: dict[str, str], **more: object) -> Attempt:
    events = [Happened(rank, entry) for (rank, _), entries in told_by.items() for entry in entries]
    given = {"state": "ended", "reason": "length", "tokens": 5, "phases_ms": {"alloc": 4.0, "wire": 1234.5}, **more}
    summary = Summary(ID, 1, groups, prompt_tokens=8, layers=(2, 2), bytes=300, began_us=START_US, **given)
    ranks = [witnessed(rank, role, entries) for (rank, role), entries in told_by.items()]
    return Attempt(summary, ranks, sorted(events, key=lambda event: event.entry.at_us))


def mark(at_ms: float, what: What, detail: str = "") -> Mark:
    return Mark(at(at_ms), what, detail)


DECODE: list[Entry] = [
    mark(0, What.SUBMITTED),
    mark(1, What.ASKED, "prealloc"),
    mark(2, What.VOTED, "prealloc no"),
    mark(3, What.REFUSED),
    mark(3, What.ASKED, "prealloc"),
    mark(4, What.VOTED, "prealloc yes"),
    mark(5, What.GRANTED),
    Landing(at(52), 0, 0, 8),
    Landing(at(58), 1, 0, 8),
    mark(45, What.FIRST_TOKEN),
    mark(58, What.LANDED),
    mark(59, What.TRANSFERRED),
    mark(60, What.DECODING),
    mark(70, What.SECOND_TOKEN),
    mark(90, What.ENDED, "length"),
    mark(90, What.GONE),
]
PREFILL: list[Entry] = [
    mark(0, What.SUBMITTED),
    mark(6, What.GRANT),
    mark(7, What.READY),
    mark(8, What.BOOTSTRAPPED),
    mark(10, What.COMPUTING),
    Chunk(at(10), 1, 0, 8, at(15), at(40)),
    Write(at(26), 0, "d0.0", 3, at(25), at(30), at(32), at(42), "ok", at(50), 0, 8),
    Write(at(40), 1, "d0.0", 3, at(40), at(43), at(46), at(54), "ok", at(57), 0, 8),
    mark(44, What.FIRST_TOKEN),
    mark(80, What.QUIET),
    mark(80, What.GONE),
]
PAIR = {("d0.0", "decode"): DECODE, ("p0.0", "prefill"): PREFILL}
GROUPS = {"prefill": "p0", "decode": "d0"}

PICTURE = """\
                          0 ms                          30 ms                    60 ms
alloc                     -----                                                        5 ms
  d0.0 vote                -*-*                                                        yes, asked 2 times
bootstrap                      ---                                                     3 ms
  p0.0 grants                   *                                                      1
admit                             --                                                   2 ms
p0.0 tokens 0-8                     -----#########################                     25 ms
p0.0 layer 0 > d0.0                                .....::==========++++++++  |        wire 10 of 27 ms
p0.0 layer 1 > d0.0                                               ...:::========+++ |  wire 8 of 18 ms
first token                                                           *                at 44 ms
first token on decode                                                  *               at 45 ms
d0.0 has all its KV                                                                 *  at 58 ms
transferred                                                                          * at 59 ms
decode                                                                               > 30 ms, 5 tokens
ended                                                                                > at 90 ms
d0.0 pages are back                                                                  > at 90 ms
p0.0 pages are back                                                                  > at 80 ms"""


def drawn(attempt: Attempt, width: int = WIDE) -> str:
    return "\n".join(f"{line.label} {line.bar} {line.note}".rstrip() for line in waterfall(attempt, width))


def line_of(attempt: Attempt, label: str) -> Drawn:
    (line,) = (line for line in waterfall(attempt, WIDE) if line.label.strip() == label)
    return line


def test_a_request_is_a_waterfall():
    assert drawn(attempt_of(PAIR, GROUPS)) == PICTURE


def later(entry: Entry, by_us: int) -> Entry:
    """All but the submit."""
    if isinstance(entry, Mark) and entry.what is What.SUBMITTED:
        return entry
    times = [name for name in entry.__struct_fields__ if name.endswith("_us")]
    return msgspec.structs.replace(entry, **{name: getattr(entry, name) + by_us for name in times})


def test_a_long_wait_is_cut_off():
    hour_us = 3_600_000_000
    attempt = attempt_of({who: [later(entry, hour_us) for entry in entries] for who, entries in PAIR.items()}, GROUPS)
    alloc, chunk = line_of(attempt, "alloc"), line_of(attempt, "p0.0 tokens 0-8")
    assert alloc.bar.strip() == "<"
    assert alloc.note == "3600 s"
    assert chunk.bar.count("#") > 20, "what follows the wait is seen as if it had not been"
    assert waterfall(attempt, WIDE)[0].bar.startswith("3600 s")


def test_a_write_that_failed_is_a_fault_where_it_ended():
    failed = Write(at(26), 0, "d0.0", 3, at(25), at(30), at(32), at(42), "failed_settled")
    entries = [entry for entry in PREFILL if not isinstance(entry, Write)]
    why = mark(43, What.FAILED_HERE, "layer 0: failed_settled")
    attempt = attempt_of({**PAIR, ("p0.0", "prefill"): [*entries, failed, why]}, GROUPS)
    assert line_of(attempt, "p0.0 layer 0 > d0.0").bar.rstrip().endswith("!")
    line = line_of(attempt, "p0.0 failed here")
    assert (line.bar.strip(), line.note) == ("!", "layer 0: failed_settled")


def test_a_write_that_never_began_says_why():
    refused = Write(at(26), 0, "d0.0", 3, at(25), result="failed_settled")
    attempt = attempt_of({**PAIR, ("p0.0", "prefill"): [mark(0, What.SUBMITTED), refused]}, GROUPS)
    assert line_of(attempt, "p0.0 layer 0 > d0.0").note == "failed_settled"


def test_units_are_told_where_they_differ():
    slow = Write(at(40), 1, "d0.0", 3, at(40), at(43), at(46), at(54), "ok", at(2_040), 0, 8)
    attempt = attempt_of({**PAIR, ("p0.0", "prefill"): [mark(0, What.SUBMITTED), slow]}, GROUPS)
    assert line_of(attempt, "p0.0 layer 1 > d0.0").note == "wire 8 ms of 2 s"


def test_a_rank_that_fails_often_has_one_line():
    whys = ["", "layer 0: failed_settled", "layer 1: failed_settled", ""]
    marks = [mark(43 + n, What.FAILED_HERE, why) for n, why in enumerate(whys)]
    attempt = attempt_of({**PAIR, ("p0.0", "prefill"): [*PREFILL, *marks]}, GROUPS)
    line = line_of(attempt, "p0.0 failed here")
    assert (line.bar.strip(), line.note) == ("!!!!", "layer 0: failed_settled")


def test_what_goes_on_is_drawn_as_far_as_it_has_come():
    decode = [entry for entry in DECODE if entry.at_us < at(60)]
    prefill = [mark(0, What.SUBMITTED), Chunk(at(10), 1, 0, 8), Write(at(26), 0, "d0.0", 3, at(25))]
    attempt = attempt_of({("d0.0", "decode"): decode, ("p0.0", "prefill"): prefill}, GROUPS, tokens=None)
    assert line_of(attempt, "p0.0 tokens 0-8").note == "not over"
    assert line_of(attempt, "p0.0 layer 0 > d0.0").bar.strip() == "", "nothing of it has happened but its queueing"
    assert "decode" not in drawn(attempt).replace("first token on decode", "")


def test_a_decode_that_goes_on_says_so():
    decode = [entry for entry in DECODE if entry.at_us <= at(70)]
    attempt = attempt_of({**PAIR, ("d0.0", "decode"): decode}, GROUPS, tokens=None)
    assert line_of(attempt, "decode").note == "goes on"


def test_a_request_that_ended_in_the_queue_is_drawn_to_its_end():
    marks = [mark(0, What.SUBMITTED), mark(30, What.ENDED, "deadline"), mark(30, What.GONE)]
    attempt = attempt_of({("d0.0", "decode"): marks}, GROUPS, reason="deadline")
    assert line_of(attempt, "ended").bar.rstrip()[-1] == "*"
    assert len(line_of(attempt, "ended").bar.rstrip()) == 60


def test_a_group_that_does_all_alone_has_no_transfer():
    entries = [
        mark(0, What.SUBMITTED),
        mark(5, What.COMPUTING),
        Chunk(at(5), 1, 0, 8, at(6), at(20)),
        mark(21, What.FIRST_TOKEN),
        mark(22, What.SECOND_TOKEN),
        mark(30, What.ENDED, "length"),
    ]
    attempt = attempt_of({("c0.0", "colocated"): entries}, {"colocated": "c0"})
    labels = [line.label.strip() for line in waterfall(attempt, WIDE)]
    assert labels == ["", "admit", "c0.0 tokens 0-8", "first token", "decode", "ended"]
    assert line_of(attempt, "decode").note == "9 ms, 5 tokens"


def test_a_request_of_which_nothing_is_known_but_a_grant_is_drawn():
    attempt = attempt_of({("p0.0", "prefill"): [mark(6, What.GRANT)]}, {"prefill": "p0"})
    assert line_of(attempt, "p0.0 grants").note == "1, not all"


@pytest.mark.parametrize("width", [80, 100, 200])
def test_lines_fit_their_columns_whatever_groups_are_called(width: int):
    names = {"d0.0": f"{'d' * 40}.0", "p0.0": f"{'p' * 40}.0"}
    renamed = {(names[rank], role): entries for (rank, role), entries in PAIR.items()}
    lines = drawn(attempt_of(renamed, GROUPS), width).splitlines()
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 ms"),
        (7, "0.007 ms"),
        (1_234, "1.23 ms"),
        (999_499, "999 ms"),
        (999_900, "1 s"),
        (1_500_000, "1.5 s"),
        (10**9, "1000 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(us: int, text: str):
    assert duration(us) == text


# the whole answer


def text_of(transfer: Transfer) -> list[str]:
    return [line.plain if isinstance(line, Text) else line for line in told(transfer, WIDTH)]


def test_the_figures_stand_below_the_picture():
    lines = text_of(Transfer(ID, [attempt_of(PAIR, GROUPS)], {}))
    assert lines[0] == f"request {ID}: p0 > d0, 8 prompt tokens, 5 generated, ended (length)"
    assert "ms: alloc 4" in lines
    assert "ms of a write, on average: wire 1234" in lines
    assert "handed over: 2 of 2 layers, 300 bytes" in lines
    assert "= wire" in lines[-1]


def test_every_attempt_is_drawn():
    second = attempt_of(PAIR, GROUPS)
    second.summary.attempt = 2
    heads = [
        line for line in text_of(Transfer(ID, [attempt_of(PAIR, GROUPS), second], {})) if line.startswith("request")
    ]
    assert [head.partition(":")[0] for head in heads] == [f"request {ID}, attempt 1", f"request {ID}, attempt 2"]


def test_clocks_dropped_entries_and_silent_ranks_are_noted():
    attempt = attempt_of(PAIR, GROUPS)
    attempt.ranks = [
        witnessed("d0.0", "decode", DECODE, shifted=True, offset_us=-2_000_000),
        witnessed("p0.0", "prefill", PREFILL, dropped=34),
    ]
    lines = text_of(Transfer(ID, [attempt], {"p0.1": "it is not registered"}))
    assert "d0.0's clock is 2 s behind the router's, within 0.005 ms; its times are corrected" in lines
    assert "p0.0 has dropped 34 entries from the middle of a long story" in lines
    assert "p0.1 was not heard: it is not registered" in lines


# when there is no answer


class Server:
    """Answers everything alike."""

    def __init__(self, status: int, body: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.server.paths.append(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.paths = self.paths = []
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(*request.param)
    yield made
    made.close()


def error(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


@pytest.mark.parametrize(
    "server", [(200, msgspec.json.encode(Transfer(ID, [attempt_of(PAIR, GROUPS)], {})))], indirect=True
)
def test_what_the_router_says_is_printed(server: Server, capsys: pytest.CaptureFixture[str]):
    assert cli.run(["trace", f"cmpl-{ID}", "--admin-url", f"{server.url}/"]) == 0
    assert server.paths == [f"/transfers/cmpl-{ID}"]
    output = capsys.readouterr()
    assert "p0.0 layer 1 > d0.0" in output.out
    assert max(map(len, output.out.splitlines())) <= WIDTH
    assert output.err == ""


@pytest.mark.parametrize("server", [(404, error("unknown_request", "no rank remembers it"))], indirect=True)
def test_the_admin_url_may_come_from_the_environment(server: Server, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TANDEM_ADMIN_URL", server.url)
    assert cli.run(["trace", "a b?c"]) == 2
    assert server.paths == ["/transfers/a%20b%3Fc"]
    assert capsys.readouterr().err == "tandem: the router refuses: no rank remembers it\n"


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ((400, error("invalid_request_id", "'x' is no request id")), "'x' is no request id"),
        ((404, error("not_found", "GET does not exist here")), "READY line"),
        ((500, b"oops"), "status 500"),
        ((404, b'{"error": "no /transfers here"}'), "status 404"),
        ((200, b"<html>"), "no router"),
        ((200, b"{}"), "no router"),
    ],
    indirect=["server"],
)
def test_what_answers_instead_is_said(server: Server, said: str):
    with pytest.raises(ConfigError) as refused:
        get(server.url, f"transfers/{ID}", Transfer)
    assert said in str(refused.value)
