"""Finds out when a local cluster serves: all its ranks are in their rings, and the router has heard every group."""

import http.client
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from tandem.core.commands import rank_name
from tandem.core.members import Member

LOOK_S = 0.1
ANSWER_S = 2.0
DRAINING = "draining"
"""What a router calls a group that was told to take nothing new: it has been heard."""


@dataclass(frozen=True)
class Expected:
    """What is to be looked for; the supervisor makes another one whenever a process starts or ends."""

    revision: int = 0
    started_ms: Mapping[str, int] = field(default_factory=dict)
    """When each rank that runs was started, since 1970: older registry entries are its predecessor's."""
    admin_url: str = ""
    """Of the router, once it listens."""


@dataclass(frozen=True)
class Look:
    """What a look has found."""

    revision: int
    """Of what was expected. Any other one is out of date."""
    http: Mapping[str, str]
    """The address of each registered rank's own HTTP port."""
    missing: str
    """It completes `waiting for ...`. Empty: the cluster serves."""


class Readiness(Protocol):
    """Says when the cluster serves; all methods return at once."""

    def start(self, tell: Callable[[Look], None]) -> None:
        """`tell` may be called from another thread."""
        ...

    def expect(self, expected: Expected) -> None:
        """Look for this from now on."""
        ...

    def stop(self) -> None: ...


class Looking:
    """Readiness by looking, on a thread that rests while the cluster serves and nothing else is expected.

    `members` reads the registry; it may raise OSError. `key` is the one of the router's admin port, if it asks for one.
    """

    def __init__(self, names: Sequence[str], members: Callable[[], list[Member]], key: str = "") -> None:
        self._names = names
        self._members = members
        self._key = key
        self._expected = Expected()
        self._news = threading.Event()
        self._stopping = False

    def start(self, tell: Callable[[Look], None]) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, args=(tell,), name="readiness", daemon=True).start()

    def expect(self, expected: Expected) -> None:
        """Look for this from now on."""
        self._expected = expected
        self._news.set()

    def stop(self) -> None:
        """End soon."""
        self._stopping = True
        self._news.set()

    def _run(self, tell: Callable[[Look], None]) -> None:
        told: Look | None = None
        while True:
            self._news.wait(LOOK_S if told is None or told.missing else None)
            self._news.clear()
            if self._stopping:
                return
            look = self._look(self._expected)
            if look != told:
                tell(look)
                told = look

    def _look(self, expected: Expected) -> Look:
        try:
            members = self._registered(expected)
        except OSError as error:
            return Look(expected.revision, {}, f"the registry: {error}")
        http = {name: member.http for name, member in members.items()}
        return Look(expected.revision, http, self._missing(expected, members))

    def _registered(self, expected: Expected) -> dict[str, Member]:
        """The entries of the processes that run now, by name."""
        found = {rank_name(member.group, member.rank): member for member in self._members()}
        return {
            name: found[name]
            for name in self._names
            if name in found and name in expected.started_ms and found[name].boot_ms >= expected.started_ms[name]
        }

    def _missing(self, expected: Expected, members: Mapping[str, Member]) -> str:
        absent = [name for name in self._names if name not in members]
        if absent:
            return f"{', '.join(absent)} to load and register"
        forming = [name for name in self._names if not members[name].epoch]
        if forming:
            return f"the rings of {', '.join(forming)}"
        if not expected.admin_url:
            return "the router to load"
        status, body = get(expected.admin_url, "/readyz", self._key)
        if status != 200:
            return f"the router: {reason(body)}"
        _, workers = get(expected.admin_url, "/workers", self._key)
        unheard = unusable([name.rpartition(".")[0] for name in self._names], workers)
        if unheard:  # a pair is enough for requests, but an order may be for any group
            return f"the router to hear {', '.join(unheard)}"
        return ""


def get(url: str, path: str, key: str = "") -> tuple[int, bytes]:
    """Status and body of one GET; status 0 with a text when nobody answers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def unusable(groups: Sequence[str], workers: bytes) -> list[str]:
    """Those of the groups that a router's /workers calls neither usable nor draining, each once."""
    try:
        told = json.loads(workers)["workers"]
        heard = [worker["name"] for worker in told if worker["usable"] or worker["state"] == DRAINING]
    except (ValueError, KeyError, TypeError):
        heard = []
    return [group for group in dict.fromkeys(groups) if group not in heard]


def reason(body: bytes) -> str:
    """What an error of the OpenAI shape says."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
