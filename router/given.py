"""What an operator gives a router, tried before anything is loaded or started: later it would end a whole cluster."""

from router.keystore import KeyStore
from router.tenants import DEFAULT_TENANT, one_key
from router.tls import tls_of
from tandem.core.config import Frontend
from tandem.core.errors import ConfigError
from tandem.runtime.places import check_endpoint, check_file


def check_frontend(frontend: Frontend, api_key: str) -> None:
    """Raises ConfigError for a certificate and keys that are no pair or cannot be read, and for keys of no use."""
    cert, key = frontend.tls_cert_path, frontend.tls_key_path
    if bool(cert) != bool(key):
        given, lacks = ("--tls-cert-path", "--tls-key-path") if cert else ("--tls-key-path", "--tls-cert-path")
        raise ConfigError(f"{given} needs {lacks}: give both, or none")
    for flag, path in (("--tls-cert-path", cert), ("--tls-key-path", key)):
        if path:
            check_file(flag, path)
    check_endpoint("--otlp-traces-endpoint", frontend.otlp_traces_endpoint)
    tls_of(frontend)
    KeyStore(frontend.api_keys_file, (one_key(api_key, DEFAULT_TENANT),) if api_key else ())
