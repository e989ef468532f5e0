"""Files and folders that an operator names, tried before anything is loaded: later their lack would cost more."""

import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tandem.core.errors import ConfigError


def check_file(flag: str, path: str) -> None:
    """Raises ConfigError that names the flag unless the file can be read."""
    try:
        open(path, "rb").close()
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}: it cannot be read, {error.strerror}") from None


def check_folder(flag: str, path: str) -> None:
    """Make the folder if need be, for its owner alone; empty: none was named.

    Raises ConfigError that names the flag when no file can be made in it.
    """
    if not path:
        return
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.NamedTemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}: no file can be made there, {error.strerror}; give another") from None


def check_target(flag: str, path: str) -> None:
    """Raises ConfigError that names the flag unless the file can be written; what is in it stays."""
    try:
        open(path, "ab").close()
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}: it cannot be written, {error.strerror}; give another") from None


def check_endpoint(flag: str, url: str) -> None:
    """Raises ConfigError for what is no URL; empty is none."""
    if url and not (url.startswith(("http://", "https://")) and urlsplit(url).hostname):
        raise ConfigError(
            f"{flag} is {url!r}: give the URL that a collector takes traces at: http://HOST:4318/v1/traces"
        )
