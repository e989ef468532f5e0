"""`tandem control`: an operator's order to a group, by way of a router's admin port."""

import http.client
import json
import urllib.error
import urllib.request
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from tandem.core.errors import ConfigError
from tandem.runtime.health import SERVER as RANK

EXIT_OK, EXIT_WRONG = 0, 1
"""All is as it should be; what was asked for is known, and something is not. What cannot be asked at all is a usage
error."""

ANSWER_S = 30.0
"""The router waits a second for its ranks, and longer with a timer scale."""
ANSWER_BYTES = 64 << 20
OK, ACCEPTED = 200, 202
NOT_HERE = ("not_found", "method_not_allowed")
"""How a router answers on a port that takes no orders."""


T = TypeVar("T")


class Answer(NamedTuple):
    """What came back to an order, from whomever."""

    status: int
    server: str
    body: bytes


def control(order: str, group: str, admin_url: str, key: str = "", *, as_json: bool = False) -> int:
    """Pass the order on. Raises ConfigError with what the router says, or who answers in its place."""
    tell(admin_url, f"workers/{part('--group', group)}/{order}", key)
    show_told(f"group {group} is told to {order}", {"group": group, "order": order}, as_json=as_json)
    return EXIT_OK


def show_told(sentence: str, facts: dict[str, str], *, as_json: bool) -> None:
    """What a router was told, for people or for programs."""
    print(json.dumps(facts) if as_json else sentence)


def part(what: str, name: str) -> str:
    """A name as a part of a path. Raises ConfigError for what is none: the router would take it for another path."""
    if not name or "/" in name:
        raise ConfigError(f"{what} is {name!r}: give a name, and no slash")
    return quote(name, safe="")


def tell(admin_url: str, path: str, key: str = "") -> None:
    """POST an order. Raises ConfigError with what the router says, or who answers in its place."""
    answer = _ask(admin_url, path, "POST", key)
    if answer.status != ACCEPTED:
        raise ConfigError(refusal(answer, admin_url))


def show(answer: object) -> None:
    """One JSON object, as the router's admin port gives it."""
    print(msgspec.json.encode(answer).decode())


def get(admin_url: str, path: str, kind: type[T], key: str = "") -> T:
    """What the router knows. Raises ConfigError with what it says, or who answers in its place."""
    answer = _ask(admin_url, path, "GET", key)
    if answer.status != OK:
        raise ConfigError(refusal(answer, admin_url))
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"--admin-url is {admin_url!r}: what answers there is no router, {error}") from None


def _ask(admin_url: str, path: str, method: str, key: str) -> Answer:
    check_url(admin_url)
    try:
        return ask(f"{admin_url.rstrip('/')}/{path}", method, key)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConfigError(f"--admin-url is {admin_url!r}: no router answers there, {why}") from None


def check_url(admin_url: str) -> None:
    """Raises ConfigError for what is no address of a server."""
    try:
        url = urlsplit(admin_url)
        right = url.scheme in ("http", "https") and url.hostname and url.port != 0  # reads it
    except ValueError:
        right = False
    if not right:
        raise ConfigError(f"--admin-url is {admin_url!r}: give http://HOST:PORT, the admin_url of the READY line")


def ask(url: str, method: str, key: str = "") -> Answer:
    """Whatever answers, with whatever status. Raises OSError, ValueError or HTTPException when nobody does."""
    request = urllib.request.Request(url, method=method)
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return Answer(answer.status, answer.headers.get("server", ""), answer.read(ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers.get("server", ""), error.read(ANSWER_BYTES))


def refusal(answer: Answer, admin_url: str) -> str:
    """What the router says; or, if it is none or not its admin port, what answers there and where to ask instead."""
    said = error_of(answer.body)
    if said is not None and said[0] not in NOT_HERE:
        return f"the router refuses: {said[1]}"
    if said is not None:
        who = "a router's port for clients answers there"
    elif answer.server == RANK:
        who = "a rank's own port answers there"
    else:
        who = f"no router answers there but {answer.server or 'something else'}, with status {answer.status}"
    return f"--admin-url is {admin_url!r}: {who}; give the admin_url of the router's READY line"


def error_of(body: bytes) -> tuple[str, str] | None:
    """Code and sentence of an error of the OpenAI shape."""
    try:
        error = json.loads(body)["error"]
        return error["code"], error["message"]
    except (ValueError, KeyError, TypeError):
        return None
