"""What a client is told when something is wrong: OpenAI's error shape, with one code per cause."""

from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from tandem.core.config import RoleName
from tandem.core.requests import Reason

INTERNAL_TEXT = "the router failed on this request; it is our bug, and the x-request-id finds it in the logs"
"""The fixed text of every 500: what went wrong inside is for the logs alone."""


class ApiError(Exception):
    """One refused or failed request: the HTTP status, and what stands in the body's `error`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        again: bool = True,  # clients that try again by themselves may do so
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.again = again

    @property
    def kind(self) -> str:
        """OpenAI's `type`: who has to change something."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """The JSON body; mid-stream, the payload of the error event."""
        error = {"message": self.message, "type": self.kind, "code": self.code, "param": self.param}
        return msgspec.json.encode({"error": error})

    def headers(self) -> dict[str, str]:
        """The headers that repeat the cause for programs that never read bodies."""
        headers = {"x-tandem-error-code": self.code}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if not self.again:
            headers["x-should-retry"] = "false"  # what OpenAI's own clients look at
        return headers


def internal() -> ApiError:
    """Our own bug."""
    return ApiError(500, "internal_error", INTERNAL_TEXT)


def group_lost(role: RoleName, name: str, cause: str) -> ApiError:
    """A group went away while it worked for the client."""
    return ApiError(502, "group_lost", f"{role.value} group {name} was lost: {cause}")


def stranded(failure: ApiError, why: ApiError) -> ApiError:
    """What happened to a request that can go on nowhere else."""
    told = f"{failure.message}; and it can go on nowhere else: {why.message}"
    return ApiError(failure.status, failure.code, told, failure.param, failure.retry_after_s)


def nowhere_else() -> ApiError:
    """All groups that could take a request have refused it."""
    return ApiError(503, "overloaded", "no other group can take it", retry_after_s=1)


def quarantined(groups: Sequence[str]) -> ApiError:
    """A request that was on too many groups when they were lost."""
    told = f"groups {' and '.join(groups)} were lost while they worked on this request, so it is not tried once more"
    return ApiError(500, "request_quarantined", f"{told}; show its x-request-id to the operator", again=False)


def still_quarantined(seconds: float) -> ApiError:
    """The same prompt as that of such a request."""
    wait_s = whole_s(seconds)
    told = "two groups were lost while they worked on a request with this prompt, so it is refused"
    text = f"{told}; show this to the operator, or try again in {wait_s} s"
    return ApiError(500, "request_quarantined", text, retry_after_s=wait_s, again=False)


def unsent(role: RoleName, name: str) -> ApiError:
    """The messages to a group do not leave."""
    return group_lost(role, name, "its queue is full")


def violation(role: RoleName, name: str, what: str) -> ApiError:
    """A group sent what the protocol does not allow: no text can be vouched for from here on."""
    return ApiError(502, "protocol_violation", f"{role.value} group {name} {what}")


def deadline_passed(timeout_s: float) -> ApiError:
    """The request's own deadline, kept by the router even when both groups are silent."""
    return ApiError(504, "deadline_exceeded", f"the request was not finished within {timeout_s:g} s")


def client_gone() -> ApiError:
    """Never sent, as nobody is left to read it: 499 is for the log."""
    return ApiError(499, "client_gone", "the client closed the connection")


def slow_reader() -> ApiError:
    """The client reads more slowly than the limits allow."""
    return ApiError(499, "slow_reader", "the client did not read its stream")


def answer_too_large() -> ApiError:
    """One body cannot hold it."""
    text = "the answer with its log-probabilities is too large for one body: stream it, or ask for fewer of them"
    return ApiError(400, "answer_too_large", text, "logprobs")


def unknown_group(name: str) -> ApiError:
    """An operator named a group that the router does not know."""
    return ApiError(
        404, "unknown_group", f"there is no group {name[:64]!r}; /workers and `tandem status` have the names", "group"
    )


def no_peer(group: str, peer: str) -> ApiError:
    """An operator named a peer group that a group has nothing to do with."""
    told = "see /workers for groups that serve, /held for those that pages are held for"
    text = f"{group} has no peer group {peer[:64]!r}; {told}"
    return ApiError(404, "unknown_peer", text, "peer")


def unreachable(name: str) -> ApiError:
    """A group that is known, but not connected, or does not take its messages."""
    return ApiError(503, "group_unreachable", f"group {name} cannot be told now; see /workers", retry_after_s=1)


def no_request_id(text: str) -> ApiError:
    """An operator gave something that no request is called."""
    example = "the x-request-id of an answer, or its id, such as cmpl-0123456789abcdef"
    return ApiError(400, "invalid_request_id", f"{text[:64]!r} is no request id: give {example}", "request_id")


def unknown_request(text: str, silent: Mapping[str, str]) -> ApiError:
    """No rank that answers remembers the request."""
    told = f"no rank remembers request {text[:64]!r}: no group ever had it, or newer ones have taken its place"
    if silent:
        told += f"; not heard: {', '.join(f'{name} ({why})' for name, why in silent.items())}"
    return ApiError(404, "unknown_request", told, "request_id")


def not_open(text: str) -> ApiError:
    """An operator named a request that is not being answered here."""
    told = f"this router answers no request {text[:64]!r} now: give its x-request-id exactly, or the id of its answer"
    return ApiError(404, "unknown_request", told, "request_id")


def aborted() -> ApiError:
    """An operator has ended it."""
    return ApiError(503, "request_aborted", "an operator has ended this request", again=False)


def outgrown(tokens: int) -> ApiError:
    """A request lost its place, and with the tokens that it has by now it fits nowhere else."""
    return ApiError(503, "overloaded", f"no group can compute the request's {tokens} tokens anew", retry_after_s=1)


def overloaded(times: int) -> ApiError:
    """The groups had to give the request's pages up again and again."""
    return ApiError(503, "overloaded", f"the request lost its place in a group {times} times", retry_after_s=1)


def shutting_down() -> ApiError:
    """The router got a signal."""
    return ApiError(503, "shutting_down", "the router is shutting down", retry_after_s=1)


def stalled(seconds: float) -> ApiError:
    """The router's process was stopped, or starved, for longer than the groups wait."""
    return ApiError(503, "router_stalled", f"the router did not run for {seconds:.1f} s", retry_after_s=1)


def ended_with(reason: Reason, role: RoleName, name: str) -> ApiError:
    """The answer to a request that a group ended for `reason` before its last token."""
    who = f"{role.value} group {name}"
    match reason:
        case Reason.QUEUE_FULL:
            return ApiError(429, "queue_full", f"{who} holds as many requests as it can", retry_after_s=1)
        case Reason.DRAINING:
            return ApiError(503, "draining", f"{who} takes nothing new", retry_after_s=1)
        case Reason.DEADLINE:
            return ApiError(504, "deadline_exceeded", f"the request's deadline passed on {who}")
        case Reason.TOO_LARGE:
            return ApiError(400, "context_length_exceeded", f"the request can never fit into {who}")
        case Reason.TRANSFER_FAILED:
            return ApiError(502, "kv_transfer_failed", f"{who} could not hand over the prompt's KV cache")
        case Reason.KV_CHECKSUM:
            return ApiError(502, "kv_checksum", f"the prompt's KV cache reached {who} damaged, more than once")
        case Reason.GROUP_LOST:
            return group_lost(role, name, "it lost one of its ranks")
        case Reason.GROUP_LEFT:
            return group_lost(role, name, "it was told to end")
        case Reason.PEER_ENDED:
            return group_lost(role, name, "its peer group ended the request and gave no reason")
        case Reason.CLIENT_GONE | Reason.ABORTED:
            return ApiError(500, "request_aborted", f"{who} aborted the request")
        case Reason.BAD_GRAMMAR:
            return ApiError(
                400, "invalid_grammar", f"{who} cannot compile the schema within its limits", "response_format"
            )
        case Reason.NOT_A_NUMBER:
            text = f"{who} computed no numbers for the request's next token"
            return ApiError(500, "not_a_number", text, again=False)
        case Reason.STOP | Reason.LENGTH | Reason.STOP_STRING:
            return violation(role, name, f"ended the request as {reason.value!r} before its last token")
        case _:
            assert_never(reason)


def tenant_limit(what: str, wait_s: float) -> ApiError:
    """A tenant asks for more than it may have."""
    return ApiError(429, "tenant_limit", f"your key allows {what}", retry_after_s=whole_s(wait_s))


def queue_full(waiting: int, wait_s: float) -> ApiError:
    """So many wait already that one more is better served elsewhere, or later."""
    busy = "this router and its groups have as many requests as they can serve at once"
    text = f"{busy}, {waiting} more wait, and one more would wait too long" if waiting else f"{busy}, and none may wait"
    return ApiError(429, "queue_full", text, retry_after_s=whole_s(wait_s))


def queue_timeout(waited_s: float, wait_s: float) -> ApiError:
    """No group had room for it in time; none has begun it."""
    text = f"no group had room for the request within {waited_s:.3g} s"
    return ApiError(408, "queue_timeout", text, retry_after_s=whole_s(wait_s))


def whole_s(seconds: float) -> int:
    """As Retry-After has it: rounded up, and at least one."""
    return max(1, int(-(-seconds // 1)))


def no_key() -> ApiError:
    """A key is needed."""
    text = "an API key is needed: send it as the header authorization: Bearer KEY"
    return ApiError(401, "missing_api_key", text, again=False)


def bad_key() -> ApiError:
    """The key is nobody's."""
    return ApiError(401, "invalid_api_key", "this API key is not known here", again=False)


def no_admin() -> ApiError:
    """The key is somebody's who may use the model only."""
    return ApiError(403, "not_an_admin_key", "this API key may not be used on the admin port", again=False)
