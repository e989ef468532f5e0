"""Finds out when a local cluster serves: all its ranks are in their rings, and the router has heard every group."""

import http.client
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from tandem.core.commands import rank_name
from tandem.core.members import Member

LOOK_S = 0.1
ANSWER_S = 2.0


@dataclass(frozen=True)
class Waiting:
    """The cluster does not serve yet; the text completes `waiting for ...`."""

    missing: str


@dataclass(frozen=True)
class Ready:
    """It serves. `http` has the address of each rank's own HTTP port."""

    http: dict[str, str]


Word = Waiting | Ready


class Readiness(Protocol):
    """Says when the cluster serves; all methods return at once."""

    def start(self, tell: Callable[[Word], None]) -> None:
        """`tell` may be called from another thread."""
        ...

    def router_at(self, admin_url: str) -> None:
        """The router's admin port."""
        ...

    def stop(self) -> None: ...


class Looking:
    """Readiness by looking, on a thread that ends with the cluster's start.

    `members` reads the registry; it may raise OSError.
    """

    def __init__(self, names: Sequence[str], members: Callable[[], list[Member]]) -> None:
        self._names = names
        self._members = members
        self._router = ""
        self._stopping = threading.Event()

    def start(self, tell: Callable[[Word], None]) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, args=(tell,), name="readiness", daemon=True).start()

    def router_at(self, admin_url: str) -> None:
        """The router's admin port."""
        self._router = admin_url

    def stop(self) -> None:
        """End soon."""
        self._stopping.set()

    def _run(self, tell: Callable[[Word], None]) -> None:
        told: Word | None = None
        while not self._stopping.wait(LOOK_S):
            word = self._look()
            if word != told:
                tell(word)
                told = word
            if isinstance(word, Ready):
                return

    def _look(self) -> Word:
        try:
            members = {rank_name(member.group, member.rank): member for member in self._members()}
        except OSError as error:
            return Waiting(f"the registry: {error}")
        absent = [name for name in self._names if name not in members]
        if absent:
            return Waiting(f"{', '.join(absent)} to load")
        forming = [name for name in self._names if not members[name].epoch]
        if forming:
            return Waiting(f"the rings of {', '.join(forming)}")
        if not self._router:
            return Waiting("the router to load")
        status, body = get(self._router, "/readyz")
        if status != 200:
            return Waiting(f"the router: {reason(body)}")
        unheard = unusable([name.rpartition(".")[0] for name in self._names], get(self._router, "/workers")[1])
        if unheard:  # a pair is enough for requests, but an order may be for any group
            return Waiting(f"the router to hear {', '.join(unheard)}")
        return Ready({name: members[name].http for name in self._names})


def get(url: str, path: str) -> tuple[int, bytes]:
    """Status and body of one GET; status 0 with a text when nobody answers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def unusable(groups: Sequence[str], workers: bytes) -> list[str]:
    """Those of the groups that a router's /workers does not call usable, each once."""
    try:
        usable = [worker["name"] for worker in json.loads(workers)["workers"] if worker["usable"]]
    except (ValueError, KeyError, TypeError):
        usable = []
    return [group for group in dict.fromkeys(groups) if group not in usable]


def reason(body: bytes) -> str:
    """What an error of the OpenAI shape says."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
