"""Every reason has its answer, and every answer OpenAI's shape."""

import msgspec
import pytest

from router.errors import ApiError, ended_with, internal
from tandem.core.config import RoleName
from tandem.core.requests import Reason

ANSWERS = {
    Reason.STOP: (502, "protocol_violation", "server_error"),
    Reason.LENGTH: (502, "protocol_violation", "server_error"),
    Reason.STOP_STRING: (502, "protocol_violation", "server_error"),
    Reason.CLIENT_GONE: (500, "request_aborted", "server_error"),
    Reason.ABORTED: (500, "request_aborted", "server_error"),
    Reason.DEADLINE: (504, "deadline_exceeded", "server_error"),
    Reason.QUEUE_FULL: (429, "queue_full", "rate_limit_error"),
    Reason.DRAINING: (503, "draining", "server_error"),
    Reason.TOO_LARGE: (400, "context_length_exceeded", "invalid_request_error"),
    Reason.TRANSFER_FAILED: (502, "kv_transfer_failed", "server_error"),
    Reason.KV_CHECKSUM: (502, "kv_checksum", "server_error"),
    Reason.BAD_GRAMMAR: (400, "invalid_grammar", "invalid_request_error"),
    Reason.NOT_A_NUMBER: (500, "not_a_number", "server_error"),
    Reason.PEER_ENDED: (502, "group_lost", "server_error"),
    Reason.GROUP_LOST: (502, "group_lost", "server_error"),
    Reason.GROUP_LEFT: (502, "group_lost", "server_error"),
}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_an_answer_that_names_the_group(reason: Reason):
    error = ended_with(reason, RoleName.DECODE, "d7")
    assert (error.status, error.code, error.kind) == ANSWERS[reason]
    assert "decode group d7" in error.message


def test_the_body_has_the_four_fields_and_the_headers_repeat_the_code():
    error = ApiError(429, "queue_full", "come back", "model", retry_after_s=3)
    assert msgspec.json.decode(error.body()) == {
        "error": {"message": "come back", "type": "rate_limit_error", "code": "queue_full", "param": "model"}
    }
    assert error.headers() == {"x-tandem-error-code": "queue_full", "retry-after": "3"}
    assert internal().status == 500
