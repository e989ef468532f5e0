"""What the benchmark of the router makes of what it measured, and when its client takes an answer for whole."""

import pytest

from bench.router import first_token
from bench.router.cases import JSON, beside_peers, first_rows, percentile
from bench.router.groups import page_hash
from bench.router.load import gaps, is_whole, request
from bench.router.workers import body_length, piece
from bench.run import BENCHES

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_it_can_be_run_by_name():
    assert "router" in BENCHES


# what is made of it


def test_the_cheapest_router_that_does_the_same_work_is_the_bar():
    found = {(JSON, "tandem"): 300.0, (JSON, "nginx"): 40.0, (JSON, "dear 1"): 600.0, (JSON, "cheap 2"): 200.0}
    rows = {row.reference: row for row in beside_peers(JSON, "tandem", found, {})}
    assert (rows["cheap 2"].ratio, rows["cheap 2"].bar, rows["cheap 2"].holds) == (1.5, "<= 1.0", False)
    assert [row.bar for name, row in rows.items() if name != "cheap 2"] == ["", ""]
    assert rows["nginx"].ratio == 7.5


def test_a_peer_that_is_absent_says_why_and_judges_nothing():
    (row,) = beside_peers(JSON, "tandem", {(JSON, "tandem"): 300.0}, {"smg 1.13.0": "it is not installed"})
    assert (row.value, row.reference, row.reference_value, row.holds) == (300.0, "smg 1.13.0", None, None)
    assert row.reason == "it is not installed"


def test_what_the_groups_need_by_themselves_is_taken_off_first_tokens():
    def turn(direct_ms: float) -> first_token.Found:
        return first_token.Found(
            routed_ms=[direct_ms + 0.4] * 99 + [direct_ms + 5], direct_ms=[direct_ms] * 99 + [direct_ms + 1]
        )

    usual, late = first_rows([turn(0.2), turn(0.3), turn(70.0)])
    assert (usual.value, usual.reference_value, usual.holds) == (pytest.approx(0.4), 0.3, True)
    assert (late.value, late.holds) == (pytest.approx(4.0), False)


def test_a_percentile_is_one_of_the_values():
    assert [percentile([3, 1, 2, 4], share) for share in (0, 50, 99)] == [1, 3, 4]


def test_only_delays_between_events_that_were_watched_count():
    assert gaps([1.0, 2.0, 2.5, 4.0], since_s=1.5) == [500, 1500]


# its client and its mocks


def test_an_answer_with_a_length_is_whole_with_its_last_byte():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"
    assert [is_whole(answer[:length]) for length in (10, len(answer) - 1, len(answer))] == [False, False, True]


def test_an_answer_in_chunks_is_whole_with_its_empty_chunk():
    answer = CHUNKED + piece(b"data: 0\r\n") + piece(b"")
    assert [length for length in range(len(answer) + 1) if is_whole(answer[:length])] == [len(answer)]


def test_any_other_status_is_an_error():
    with pytest.raises(ConnectionError, match="503"):
        is_whole(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")


def test_a_request_tells_its_length():
    head, _, body = request(80, '{"prompt": "ä"}').partition(b"\r\n\r\n")
    assert body_length(head) == len(body) == 16


def test_pages_of_a_mock_have_hashes_of_their_own():
    hashes = {page_hash(number) for number in range(-5000, 5000)}
    assert len(hashes) == 10_000
    assert all(0 <= each < 2**64 for each in hashes)
