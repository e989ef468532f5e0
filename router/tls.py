"""What encrypts both ports."""

import ssl

from tandem.core.config import Frontend
from tandem.core.errors import ConfigError


def tls_of(frontend: Frontend) -> ssl.SSLContext | None:
    """TLS 1.2 or newer, with the operator's certificate; None without one. Raises ConfigError."""
    if not frontend.tls_cert_path:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(frontend.tls_cert_path, frontend.tls_key_path, password=_no_password)
    except (OSError, ValueError) as error:
        files = f"--tls-cert-path {frontend.tls_cert_path} and --tls-key-path {frontend.tls_key_path}"
        raise ConfigError(f"{files} cannot be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    """Nobody is there to be asked for it."""
    raise ValueError("the key has a password")
