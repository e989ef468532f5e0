"""Who may use this router: keys, as their hashes, and what each tenant may use. Pure: bytes in, tenants out."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from router.limits import Quota

DEFAULT_TENANT = "default"
"""Whose key --api-key is."""
KEYS_MAX = 1024
FILE_BYTES = 1 << 20
KEY_BYTES = 512
"""Of a key that a client shows."""

T = TypeVar("T")
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Limit = Annotated[int, Meta(ge=1, le=10**12)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key, as the file has it. Several keys may have one name: they are one tenant, with equal limits."""

    name: Name
    key_sha256: Digest
    requests_per_minute: Limit | None = None
    concurrent: Limit | None = None
    tokens_per_minute: Limit | None = None
    admin: bool = False


class Tenant(msgspec.Struct, frozen=True):
    """Whoever a request is from. The anonymous one, without a name, is everybody where no key is asked for."""

    name: str = ""
    quota: Quota = Quota()
    admin: bool = False


ANONYMOUS = Tenant()


class BadKeys(ValueError):
    """A keys file that cannot be used. The text names the entry and what is wrong with it, never a key or a hash."""


class Keys:
    """All keys that are known now."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._tenants = [(bytes.fromhex(entry.key_sha256), _tenant(entry)) for entry in entries]

    def __len__(self) -> int:
        return len(self._tenants)

    @property
    def names(self) -> set[str]:
        """Of the tenants."""
        return {tenant.name for _, tenant in self._tenants}

    @property
    def admins(self) -> int:
        """How many of the keys may be used on the admin port."""
        return sum(tenant.admin for _, tenant in self._tenants)

    def find(self, key: bytes) -> Tenant | None:
        """Whose key it is. Every known one is compared, each to its end, so the time tells nothing."""
        shown, found = hashlib.sha256(key).digest(), None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, shown):
                found = tenant
        return found


def read_keys(content: bytes) -> Keys:
    """From a JSON list of entries, or one entry on each line. Raises BadKeys."""
    if len(content) > FILE_BYTES:
        raise BadKeys(f"it is larger than {FILE_BYTES} bytes")
    if content.lstrip()[:1] == b"[":
        entries = _decoded(content, list[Entry], "the list")
    else:
        lines = [(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
        entries = [_decoded(line, Entry, f"line {number}") for number, line in lines]
    return Keys(checked(entries))


def one_key(key: str, name: str, *, admin: bool = False) -> Entry:
    """Of an operator who gives a key itself."""
    return Entry(name, hashlib.sha256(key.encode()).hexdigest(), admin=admin)


def salt_of(secret: bytes, tenant: Tenant, salt: str) -> str:
    """Whose prefixes the tenant's request may share: a keyed hash, so that no client can name another tenant's."""
    if not tenant.name:
        return salt
    told = f"{tenant.name}\0{salt}".encode("utf-8", "surrogatepass")
    return hmac.digest(secret, b"tandem salt 1\0" + told, hashlib.sha256).hex()


def _tenant(entry: Entry) -> Tenant:
    quota = Quota(entry.requests_per_minute, entry.concurrent, entry.tokens_per_minute)
    return Tenant(entry.name, quota, entry.admin)


def checked(entries: list[Entry]) -> list[Entry]:
    """The same, if they go together. Raises BadKeys."""
    if len(entries) > KEYS_MAX:
        raise BadKeys(f"it has {len(entries)} keys: at most {KEYS_MAX} are allowed")
    if not entries:
        raise BadKeys("it has no key: nobody could get in")
    digests: set[str] = set()
    quotas: dict[str, Quota] = {}
    for entry in entries:
        if entry.key_sha256 in digests:
            raise BadKeys(f"the key of {entry.name} is there twice")
        digests.add(entry.key_sha256)
        quota = _tenant(entry).quota
        if quotas.setdefault(entry.name, quota) != quota:
            raise BadKeys(f"the keys of {entry.name} have different limits")
    return entries


def _decoded(content: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadKeys(f"{where} is wrong: {str(error)[:200]}") from None
