"""`tandem bench e2e`: what streams say of rates and parts, and who is compared with whom; the servers run elsewhere."""

import socketserver
import threading
from collections.abc import Iterator

import pytest

from bench.e2e import ALONE, COLOCATED, ONE, TWO, VLLM, VLLM_ALL, rows_of
from bench.e2e_lost import figure
from bench.e2e_parts import (
    BETWEEN,
    BOOTSTRAP,
    CARRIED,
    EXPOSED,
    FORWARD,
    HTTP,
    JOINED,
    LAUNCH,
    OUT,
    ROUTER,
    SOCKETS,
    STEP,
    TOLD,
    first_token,
    second_token,
)
from bench.engine import Case
from bench.run import BENCHES
from bench.streams import Stream, rate, shows, timed, together, whole_s
from tandem.runtime.history import Attempt, Chunk, Happened, Mark, Summary, What

CASE = Case("prefill 512", ("prefill", 512), 512)


def test_it_is_one_of_the_benchmarks():
    assert "e2e" in BENCHES


def test_who_is_compared_with_whom_and_by_which_bar():
    found = {ONE: 100.0, COLOCATED: 120.0, TWO: 80.0, VLLM: 110.0, VLLM_ALL: 90.0, ALONE: 150.0}
    rows = [(each.case, each.reference, each.bar, each.holds) for each in rows_of(CASE, found, {})]
    assert rows == [
        (f"{ONE}: prefill 512", VLLM, ">= 1.0", False),
        (f"{COLOCATED}: prefill 512", VLLM, ">= 1.0", True),
        (f"{TWO}: prefill 512", VLLM, "", None),
        (f"{ONE}: prefill 512", VLLM_ALL, ">= 1.0", True),
        (f"{COLOCATED}: prefill 512", VLLM_ALL, ">= 1.0", True),
        (f"{TWO}: prefill 512", VLLM_ALL, "", None),
        (f"{TWO}: prefill 512", ONE, ">= 0.9", False),
        (f"{ONE}: prefill 512", ALONE, "", None),
        (f"{COLOCATED}: prefill 512", ALONE, "", None),
        (f"{TWO}: prefill 512", ALONE, "", None),
    ]


def test_a_server_that_is_absent_says_why_in_its_rows():
    found = {ONE: 100.0, COLOCATED: 120.0, TWO: 80.0, VLLM_ALL: 90.0, ALONE: 150.0}
    reasons = {each.reason for each in rows_of(CASE, found, {VLLM: "nobody has it"}) if each.reference == VLLM}
    assert reasons == {"nobody has it"}


# streams


def test_a_rate_counts_only_while_all_streams_run():
    early = Stream(0.0, (1.0, 2.0, 3.0, 4.0, 5.0), 5)
    late = Stream(0.0, (3.0, 4.0, 5.0, 6.0, 7.0), 5)
    assert rate([early, late]) == 2.0  # in (3, 5]: two of each
    assert whole_s([early, late]) == 7.0


def test_events_with_more_than_one_token_count_as_such():
    assert rate([Stream(0.0, (1.0, 2.0, 3.0), 6)]) == 2.0


def test_streams_that_never_met_are_rated_over_all_their_time():
    one, after = Stream(0.0, (1.0, 2.0), 2), Stream(0.0, (2.0, 3.0), 2)
    assert rate([one, after]) == 1.5


def test_a_stream_without_text_does_not_show_when_its_tokens_came():
    assert shows(Stream(0.0, (1.0, 2.0), 3))
    assert not shows(Stream(0.0, (1.0,), 2))


def test_a_server_timing_header_is_read():
    assert timed("queue;dur=0.1, prefill;dur=20.5") == {"queue": 0.1, "prefill": 20.5}
    assert timed(None) is None


ANSWER = (
    b"HTTP/1.1 200 OK\r\nX-Request-Id: abc\r\nServer-Timing: queue;dur=0.0\r\n\r\n"
    b'data: {"choices": [{"text": "a", "finish_reason": null}], "usage": null}\n\n'
    b'data: {"choices": [{"text": "", "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\n'
    b"data: [DONE]\n\n"
)
BROKEN = b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "lost"}}\n\n'
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\n\r\nno room"


class Answers(socketserver.ThreadingTCPServer):
    """Gives them away, one to a connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.texts: list[bytes] = []


class Handler(socketserver.StreamRequestHandler):
    server: Answers

    def handle(self) -> None:
        length = 0
        while (line := self.rfile.readline()) != b"\r\n":
            name, _, value = line.partition(b": ")
            length = int(value) if name == b"content-length" else length
        self.rfile.read(length)
        self.wfile.write(self.server.texts.pop())


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(answers: Answers, *texts: bytes) -> list[Stream]:
    answers.texts += texts
    return together(f"http://127.0.0.1:{answers.server_address[1]}", "m", [[1, 2]] * len(texts), 2)


def test_streams_are_read_at_once_with_their_headers(answers: Answers):
    streams = ask(answers, ANSWER, ANSWER)
    assert [(len(each.events_s), each.tokens, each.request_id) for each in streams] == [(2, 2, "abc")] * 2
    assert streams[0].server_ms == {"queue": 0.0}
    assert all(each.began_s <= each.events_s[0] <= each.events_s[1] for each in streams)


@pytest.mark.parametrize(("text", "why"), [(BROKEN, "lost"), (REFUSED, "503"), (ANSWER[:150], "0 tokens came")])
def test_any_other_answer_is_an_error(answers: Answers, text: bytes, why: str):
    with pytest.raises(ConnectionError, match=why):
        ask(answers, text)


# parts


def at(rank: str, us: int, what: What) -> Happened:
    return Happened(rank, Mark(us, what))


def test_the_parts_of_a_first_token_are_all_of_it():
    events = [
        at("p0.0", 2_000, What.SUBMITTED),
        at("p0.0", 3_000, What.BOOTSTRAPPED),
        at("p0.0", 5_000, What.COMPUTING),
        Happened("p0.0", Chunk(5_000, 1, 0, 512, 5_500, 105_500)),
        Happened("p0.0", Chunk(5_100, 2, 512, 600, 105_800, 125_800)),
        at("p0.0", 126_000, What.FIRST_TOKEN),
        at("d0.0", 127_000, What.FIRST_TOKEN),
        at("d0.0", 129_000, What.TRANSFERRED),
        at("d0.0", 129_500, What.DECODING),
        at("d0.0", 140_500, What.SECOND_TOKEN),
    ]
    server_ms = {"queue": 0.0, "prefill": 125.2, "first-token": 126.0}
    stream = Stream(0.0, (0.1275, 0.1415), 3, "id", server_ms)
    attempt = Attempt(summary(), [], events)
    parts = first_token(stream, attempt)
    assert parts == pytest.approx(
        {
            HTTP: 1.5,
            ROUTER: 0.8,
            SOCKETS: 1.2,
            BOOTSTRAP: 3.0,
            LAUNCH: 0.5,
            FORWARD: 120.0,
            BETWEEN: 0.3,
            TOLD: 0.2,
        }
    )
    assert sum(parts.values()) == pytest.approx(stream.first_s * 1000)
    later = second_token(stream, attempt)
    assert later == pytest.approx({CARRIED: 1.0, EXPOSED: 2.0, JOINED: 0.5, STEP: 11.0, OUT: 1.0})
    assert sum(later.values()) == pytest.approx(141.5 - 126.0)


def summary() -> Summary:
    groups = {"prefill": "p0", "decode": "d0"}
    return Summary("id", 1, groups, "ended", "length", 600, 3, (30, 30), 0, 0, {})


def test_a_figure_of_a_rank_is_found_with_its_labels():
    text = '# HELP a_sum x\na_sum{group="d0",rank="0"} 1.5\na_count{group="d0"} 3\n'
    assert (figure(text, "a_sum"), figure(text, "a_count")) == (1.5, 3.0)
