"""What a rank says of itself, signed: an entry of the registry, or an answer to its peers.

It is signed with a key derived from the cluster secret and bound to its own place, so that neither a stranger's entry
nor one copied to another place is believed.
"""

import hashlib
import hmac
import logging
from collections.abc import Iterable

import msgspec

from tandem.core.errors import ConfigError
from tandem.core.members import Member

LEASE_MS = 5000
"""For so long an entry that is not renewed is believed."""
MAX_VALUE_BYTES = 64 << 10
MAC_BYTES = 32

log = logging.getLogger("tandem.registry")


class Entries:
    """Of one cluster. `ignored` counts those that were unsigned, forged, malformed or in another's place."""

    def __init__(self, cluster: str, secret: bytes) -> None:
        """Raises ConfigError without a secret."""
        if not secret:
            raise ConfigError("entries of ranks are signed: give --cluster-secret-file")
        self.ignored = 0
        self.prefix = f"tandem:{cluster}:rank:"
        """What the keys of all entries begin with."""
        self._secret = hmac.digest(secret, b"tandem registry 1", hashlib.sha256)
        self._decoder = msgspec.msgpack.Decoder(Member)

    def key(self, member: Member) -> str:
        """Of this rank, whichever process it is."""
        return f"{self.prefix}{member.group.name}:{member.rank}"

    def seal(self, member: Member) -> tuple[str, bytes]:
        """Its key and the signed value."""
        key, data = self.key(member), msgspec.msgpack.encode(member)
        return key, self._mac(key, data) + data

    def read(self, key: str, value: bytes | None) -> Member | None:
        """Who is meant, if it can be believed. An entry may have ended while it was read: None."""
        if value is None:
            return None
        mac, data = value[:MAC_BYTES], value[MAC_BYTES:]
        if len(value) <= MAX_VALUE_BYTES and hmac.compare_digest(mac, self._mac(key, data)):
            try:
                member = self._decoder.decode(data)
            except (msgspec.DecodeError, RecursionError):  # signed by another version
                pass
            else:
                if self.key(member) == key:
                    return member
        if not self.ignored:
            log.warning("an entry is not signed with this --cluster-secret-file: %s is ignored", key)
        self.ignored += 1
        return None

    def _mac(self, key: str, data: bytes) -> bytes:
        return hmac.digest(self._secret, key.encode() + b"\0" + data, hashlib.sha256)


def in_order(found: Iterable[Member | None]) -> list[Member]:
    """By group name and rank."""
    return sorted((one for one in found if one is not None), key=lambda one: (one.group.name, one.rank))
