"""Lets nobody in without a key: the layer in front of both ports' routes."""

import ipaddress
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from router.edge import answer
from router.errors import ApiError, bad_key, no_admin, no_key
from router.keystore import KeyStore
from router.tenants import ANONYMOUS, DEFAULT_TENANT, KEY_BYTES, Keys, Tenant, one_key, salt_of
from tandem.core.config import RouterOptions
from tandem.core.errors import ConfigError

OPEN = frozenset(("/livez", "/readyz", "/health", "/version"))
"""What anybody may ask: they tell nothing of a request or a model."""


class Doors:
    """Who may come in: clients at the data port, operators at the admin port. Without any keys everybody may."""

    def __init__(
        self,
        clients: KeyStore | None = None,
        operators: Keys | None = None,
        secret: bytes = b"",
        *,
        admin: bool = False,
    ) -> None:
        """`admin`: the admin port asks for a key. The secret is that of the tenants' salts."""
        self._clients = clients or KeyStore()
        self._operators = operators or Keys(())
        self._secret = secret
        self._admin = admin

    @property
    def names(self) -> set[str]:
        """Of all tenants."""
        return self._clients.keys.names

    def clients(self) -> Sequence[Keys]:
        """The keys of the data port; empty: none is asked for."""
        return (self._clients.keys,) if len(self._clients.keys) else ()

    def operators(self) -> Sequence[Keys]:
        """The keys of the admin port; empty: none is asked for."""
        return (self._operators, self._clients.keys) if self._admin else ()

    def salt(self, tenant: Tenant, salt: str) -> str:
        """Of the prefixes that the tenant's request may share, from the client's own salt."""
        return salt_of(self._secret, tenant, salt)

    def look(self, now: float) -> bool:
        """See `KeyStore.look`."""
        return self._clients.look(now)


def doors_of(options: RouterOptions, secret: bytes) -> Doors:
    """Raises ConfigError for keys that cannot be used, and for an admin port that would be open to other hosts."""
    given = (one_key(options.api_key, DEFAULT_TENANT),) if options.api_key else ()
    clients = KeyStore(options.frontend.api_keys_file, given)
    operators = Keys([one_key(options.admin_api_key, "admin", admin=True)] if options.admin_api_key else [])
    closed = bool(options.admin_api_key) or not is_loopback(options.admin_host)
    if closed and not len(operators) and not clients.keys.admins:
        text = f"--admin-host is {options.admin_host}: other hosts may reach it, so it needs a key"
        raise ConfigError(f"{text}; set TANDEM_ADMIN_API_KEY, or have an admin in --api-keys-file")
    return Doors(clients, operators, secret, admin=closed)


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """In front of an app: says in `scope["state"]["tenant"]` who asks, or answers 401 or 403 itself."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Callable[[], Sequence[Keys]],
        *,
        admin: bool = False,
        shown: frozenset[str] = frozenset(),
    ) -> None:
        """`keys` are those of this moment; empty: none is asked for. `admin`: only those of who may do everything.

        `shown` are paths that anybody may have beside `OPEN`: files that tell nothing of this router.
        """
        self._app = app
        self._keys = keys
        self._admin = admin
        self._open = OPEN | shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope["state"]["tenant"] = self._tenant(scope)
            except ApiError as error:
                return await answer(error, **challenge(error))(scope, receive, send)
        return await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant:
        keys = self._keys()
        if not keys or scope["path"] in self._open:
            return ANONYMOUS
        key = shown_key(scope)
        tenant = next((found for each in keys if (found := each.find(key)) is not None), None)
        if tenant is None:
            raise bad_key()
        if self._admin and not tenant.admin:
            raise no_admin()
        return tenant


def challenge(error: ApiError) -> dict[str, str]:
    """What a 401 has to carry by the rules of HTTP."""
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}


def shown_key(scope: Scope) -> bytes:
    """The bearer key of a request. Raises ApiError 401 when there is none, or more than one."""
    given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        raise no_key()
    scheme, _, key = given[0].partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key:
        raise no_key()
    if len(key) > KEY_BYTES:
        raise bad_key()
    return key
