"""A cluster without a registry: each rank shows its entry on its HTTP port, and is asked for it by all others."""

import http.client
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tandem.core.errors import ConfigError
from tandem.core.members import Member
from tandem.runtime.entries import LEASE_MS, MAX_VALUE_BYTES, Entries, in_order
from tandem.runtime.health import MEMBER, NOT_FOUND, OK

ASK_S = 1.0
"""A peer that does not answer in this time is asked again in the next round."""
MAX_PEERS = 1024
MAX_KEY_BYTES = 1024
ASKING_AT_ONCE = 16
MOST_NAMED = 8
"""Of those that do not answer, in one line of the log."""
HOST = re.compile(r"[^\s/?#@\[\]\x00-\x1f\x7f]+")

Place = tuple[str, int]
"""Host and port."""

log = logging.getLogger("tandem")


def places_of(peers: str) -> list[Place]:
    """The addresses of `host:port,host:port`. Raises ConfigError that names the one that cannot be meant."""
    found = []
    for text in peers.split(","):
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and _names_a_host(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"--peers has {text!r}: give host:port of each rank's HTTP port, separated by commas")
        found.append((host, int(port)))
    if len(found) > MAX_PEERS:
        raise ConfigError(f"--peers names {len(found)} ranks: give {MAX_PEERS} at most, or use a registry")
    return found


def _names_a_host(text: str) -> bool:
    """Whether somebody could be asked there: what could not would end the thread that asks."""
    try:
        return HOST.fullmatch(text) is not None and bool(text.encode("idna"))
    except UnicodeError:
        return False


class PeerList:
    """Fits `Directory`. What a peer has said is believed for as long as an entry of a registry would be.

    Calls take up to ASK_S for ASKING_AT_ONCE peers each; who is still being asked then is heard in a later one, and so
    costs nobody else the belief in what was heard before. `show` gets what this rank's own port answers from then on.
    For one thread.
    """

    def __init__(
        self,
        peers: Sequence[Place],
        entries: Entries,
        show: Callable[[bytes], None] = lambda entry: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers = peers
        self._entries = entries
        self._show = show
        self._clock = clock
        self._own: Member | None = None
        self._heard: dict[Place, tuple[float, Member]] = {}  # until when, and whom
        self._asked: dict[Place, Future[bytes | None]] = {}
        """Who has not answered yet."""
        self._troubles: dict[Place, str] = {}
        """Why nobody is known there, by the last answer, or that there was none."""
        self._complaint = ""
        self._asking = ThreadPoolExecutor(min(len(peers), ASKING_AT_ONCE), thread_name_prefix="peers")

    def publish(self, member: Member) -> Member | None:
        """This rank's entry from now on; returns whoever else has its place, as far as that was heard."""
        key, value = self._entries.seal(member)
        self._own = member
        self._show(key.encode() + b"\n" + value)
        there = [one for _, one in self._heard.values() if self._entries.key(one) == key]
        others = [one for one in there if one.incarnation != member.incarnation]
        return max(others, key=lambda one: one.boot_ms, default=None)

    def withdraw(self, member: Member) -> None:
        """This rank is going: whoever asks is told so."""
        del member
        self._show(b"")

    def members(self) -> list[Member]:
        """All who have answered lately, by group name and rank; of two in one place, who was started later."""
        for place in self._peers:
            if place not in self._asked:
                self._asked[place] = self._asking.submit(self._ask, place)
        done, _ = wait(self._asked.values(), ASK_S * -(-len(self._peers) // ASKING_AT_ONCE))
        for place, asked in list(self._asked.items()):
            if asked in done:
                self._hear(place, asked.result())
                del self._asked[place]
        self._complain()
        now = self._clock()
        self._heard = {place: heard for place, heard in self._heard.items() if heard[0] > now}
        found = [member for _, member in self._heard.values()]
        if self._own is not None:
            found.append(self._own)
        return in_order({self._entries.key(one): one for one in sorted(found, key=lambda one: one.boot_ms)}.values())

    def close(self) -> None:
        """Who is being asked is not waited for."""
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _hear(self, place: Place, answer: bytes | None) -> None:
        """None: it could not be asked. Nothing: it has no entry, or takes it back."""
        if answer is None:
            return
        key, _, value = answer.partition(b"\n")
        member = self._entries.read(key.decode(errors="replace"), value) if answer else None
        self._troubles[place] = "what it shows is of another cluster or secret" if answer and member is None else ""
        if member is None:
            self._heard.pop(place, None)
        else:
            self._heard[place] = (self._clock() + LEASE_MS / 1000, member)

    def _complain(self) -> None:
        """Say it when nobody answers; once, until it is for another reason. A rank answers itself."""
        troubles = [(place, self._troubles.get(place, "it has not answered yet")) for place in self._peers]
        complaint = ""
        if all(why for _, why in troubles):
            told = [f"{host}:{port}: {why}" for (host, port), why in troubles[:MOST_NAMED]]
            more = len(troubles) - len(told)
            complaint = "; ".join(told) + (f"; and {more} more" if more else "")
        if complaint and complaint != self._complaint:
            log.warning("none of --peers answers: %s", complaint)
        elif self._complaint and not complaint:
            log.info("--peers answer")
        self._complaint = complaint

    def _ask(self, place: Place) -> bytes | None:
        """On a thread of its own."""
        connection = http.client.HTTPConnection(*place, timeout=ASK_S)
        try:
            connection.request("GET", MEMBER)
            answer = connection.getresponse()
            content = answer.read(MAX_KEY_BYTES + MAX_VALUE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self._troubles[place] = str(error) or repr(error)
            return None
        finally:
            connection.close()
        if answer.status not in (OK, NOT_FOUND):
            self._troubles[place] = f"it answers with status {answer.status}"
            return None
        return content if answer.status == OK else b""
