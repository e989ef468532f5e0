"""The registry: every rank's Member under a lease in Redis. An entry is a hint; identity is proved in the handshake.

Only Redis 6.2 commands: SET PX, DEL, SCAN, MGET.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import redis
import redis.backoff
import redis.retry

from tandem.core.errors import ConfigError
from tandem.core.members import Member
from tandem.runtime.entries import LEASE_MS, Entries, in_order

WITHDRAW_S = 0.5
PERIOD_S = 1.0
HURRY_S = 0.1
"""The period until the ring has formed: its ranks wait for each other."""
HURRY_FOR_S = 60.0
"""Then somebody is missing for longer, and a second does not matter."""
BACK_OFF_S = (0.2, 2.0)
"""First and longest wait after a failure."""
TIMEOUT_S = 2.0
MAX_MEMBERS = 4096
SCHEMES = ("redis://", "rediss://", "unix://")

log = logging.getLogger("tandem.registry")


class Registry:
    """One cluster's entries. Calls take up to TIMEOUT_S and raise redis.RedisError when the server is away.

    For one thread.
    """

    def __init__(self, url: str, cluster: str, secret: bytes) -> None:
        """Raises ConfigError for an unusable url, or without a secret. Does not connect yet."""
        self._entries = Entries(cluster, secret)
        if not url.startswith(SCHEMES):
            raise ConfigError(f"registry-url is {redacted(url)!r}: it must begin with one of {', '.join(SCHEMES)}")
        try:
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
                protocol=2,
                driver_info=None,
            )
        except ValueError:  # its text may quote parts of a password
            raise ConfigError(f"registry-url is {redacted(url)!r}: not a URL that redis understands") from None

    @property
    def ignored(self) -> int:
        """Entries that could not be believed."""
        return self._entries.ignored

    def publish(self, member: Member) -> Member | None:
        """Put or renew this rank's entry; returns the one that was there, if it was believable."""
        key, value = self._entries.seal(member)
        before: bytes | None = self._redis.set(key, value, px=LEASE_MS, get=True)  # type: ignore[assignment]
        return self._entries.read(key, before)

    def withdraw(self, member: Member) -> None:
        """Take this rank's entry away, unless it is another incarnation's by now."""
        key = self._entries.key(member)
        there = self._entries.read(key, self._redis.get(key))  # type: ignore[arg-type]
        if there is not None and there.incarnation == member.incarnation:
            self._redis.delete(key)

    def members(self) -> list[Member]:
        """All believable entries, by group name and rank."""
        pattern = _escaped(self._entries.prefix) + "*"
        keys: list[bytes] = sorted(set(self._redis.scan_iter(match=pattern, count=1000)))[:MAX_MEMBERS]
        values: list[bytes | None] = self._redis.mget(keys) if keys else []  # type: ignore[assignment]
        named = zip((key.decode(errors="replace") for key in keys), values, strict=True)
        return in_order(self._entries.read(key, value) for key, value in named)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


class Directory(Protocol):
    """Who is there: a registry, or the list of peers that takes its place."""

    def publish(self, member: Member) -> Member | None:
        """This rank's entry from now on; returns who has, or had, its place."""
        ...

    def withdraw(self, member: Member) -> None:
        """This rank is going."""

    def members(self) -> list[Member]:
        """All who are there, by group name and rank."""
        ...

    def close(self) -> None:
        """It is not asked any more."""


class RegistryLoop:
    """Keeps a rank in the registry, and its picture of the others fresh, from a thread of its own.

    `on_members` gets what was read, `on_replaced` who has taken this rank's place, both on that thread. An unreachable
    registry changes nothing: the last picture stays, and nobody is called.
    """

    def __init__(
        self,
        registry: Directory,
        on_members: Callable[[list[Member]], None],
        on_replaced: Callable[[Member], None],
    ) -> None:
        self.reachable = True
        self._registry = registry
        self._member: Member | None = None
        self._on_members = on_members
        self._on_replaced = on_replaced
        self._published = False
        self._calm_s = time.monotonic() + HURRY_FOR_S
        self._stopping = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)

    def start(self) -> None:
        """Begin; the first round is made at once."""
        self._thread.start()

    def show(self, member: Member) -> None:
        """This is the entry from now on, at once. From any thread."""
        self._member = member
        self._calm_s = time.monotonic() + (0.0 if member.epoch else HURRY_FOR_S)
        self._news.set()

    def stop(self) -> None:
        """End the thread, which takes this rank's entry away; one that the registry keeps waiting is left behind."""
        self._stopping = True
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(WITHDRAW_S)

    def _run(self) -> None:
        failures = 0
        while not self._stopping:
            if self._round():
                failures = 0
                wait_s = HURRY_S if time.monotonic() < self._calm_s else PERIOD_S
            else:
                wait_s = min(BACK_OFF_S[0] * 2**failures, BACK_OFF_S[1])
                failures = min(failures + 1, 16)
            self._news.wait(wait_s)
            self._news.clear()
        try:
            if self._member is not None:
                self._registry.withdraw(self._member)
        except redis.RedisError as error:
            log.info("registry: not withdrawn, the lease ends by itself: %s", error)
        self._registry.close()

    def _round(self) -> bool:
        member = self._member
        try:
            before = None if member is None else self._registry.publish(member)
            members = self._registry.members()
        except redis.RedisError as error:
            if self.reachable:
                log.warning("registry cannot be reached, going on with what is known: %s", error)
            self.reachable = False
            return False
        if not self.reachable:
            log.warning("registry is back")
        self.reachable = True
        if member is not None:
            if self._published and before is not None and _is_later(before, member):
                self._on_replaced(before)
            if not self._published and before is not None and _is_later(member, before):
                where = f"with /state on {before.http}" if before.http else "without an address"
                log.warning("another process has this rank's place, %s: if it still runs, it ends now", where)
            self._published = True
        self._on_members(members)
        return True


def _is_later(other: Member, member: Member) -> bool:
    """Whether another process has the place of this rank. Of two, the one that was started later has it.

    An earlier incarnation of this process was started at the same time.
    """
    return other.boot_ms > member.boot_ms


def redacted(url: str) -> str:
    """The URL without user and password, for messages."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}" if "@" in rest else url


def _escaped(text: str) -> str:
    """A glob that matches exactly this text."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
