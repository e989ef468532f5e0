"""Bodies that nobody meant to send, to a real router: each gets a 400 in OpenAI's shape, and leaves no traceback."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
FUZZ = settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
"""A busy machine is slow to make up bodies; that is no matter here."""

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
VALID = (
    b'{"model": "tiny", "prompt": "h\xc3\xa9", "messages": [{"role": "user", "content": "h\xc3\xa9"}], "tokens": ["x"]}'
)
WRONG = [(at, bytes([byte])) for at in range(len(VALID)) for byte in (0x00, 0x22, 0x7B, 0x80, 0xC3, 0xFF)]


@pytest.fixture
def line(serving) -> Iterator[HTTPConnection]:
    with closing(HTTPConnection(*serving.address)) as opened:
        yield opened


def status_of(line: HTTPConnection, path: str, payload: bytes) -> int:
    line.request("POST", path, payload, {"content-type": "application/json"})
    response = line.getresponse()
    told = response.read()
    if response.status != 200:
        error = json.loads(told)["error"]
        assert set(error) == {"message", "type", "code", "param"}
        assert "Traceback" not in error["message"]
    return response.status


def test_bytes_that_are_no_json_are_refused(line, caplog):
    @FUZZ
    @given(st.sampled_from(PATHS), st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode()))
    def send(path: str, payload: bytes) -> None:
        assert status_of(line, path, payload) == 400

    send()
    assert "Traceback" not in caplog.text


def test_json_that_is_no_request_is_refused(line, caplog):
    @FUZZ
    @given(st.sampled_from(PATHS), JSON)
    def send(path: str, value: object) -> None:
        assert status_of(line, path, json.dumps(value).encode()) == 400

    send()
    assert "Traceback" not in caplog.text


def test_a_request_with_a_broken_byte_is_refused_or_means_something_else(line, caplog):
    @FUZZ
    @given(st.sampled_from(PATHS[:3]), st.sampled_from(WRONG))
    def send(path: str, wrong: tuple[int, bytes]) -> None:
        at, byte = wrong
        assert status_of(line, path, VALID[:at] + byte + VALID[at + 1 :]) in (200, 400, 404)

    send()
    assert "Traceback" not in caplog.text
