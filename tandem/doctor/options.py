"""What `tandem doctor` is told."""

import msgspec

from kvtransfer.transports.mooncake import Protocol
from tandem.core.config import check_device
from tandem.core.errors import ConfigError

Place = tuple[str, int]
"""Host and port."""


class DoctorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `tandem doctor`."""

    listen: str | None = None
    connect: str | None = None
    wait_s: float = 60.0
    transport_protocol: Protocol = "tcp"
    transport_device: str = ""
    secret_file: str = ""
    registry_url: str = ""
    model: str = ""
    cluster: str = "default"
    as_json: bool = False


def check_options(options: DoctorOptions) -> None:
    """Raises ConfigError for flags that cannot be read or do not go together."""
    if options.listen is not None and options.connect is not None:
        raise ConfigError("--listen and --connect are for two hosts: give one of them on each")
    check_device(options.transport_protocol, options.transport_device)
    for flag, place in (("--listen", options.listen), ("--connect", options.connect)):
        if place is None:
            continue
        parse_place(flag, place)
        if not options.secret_file:
            raise ConfigError(
                f"{flag} needs --cluster-secret-file, the same on both hosts: `(umask 077; head -c 32 /dev/urandom > "
                "FILE)` makes one"
            )


def parse_place(flag: str, text: str) -> Place:
    """Host and port of `10.0.0.1:7000` or `[fe80::1]:7000`. Raises ConfigError that names the flag."""
    place, _, port = text.rpartition(":")
    host = place.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{flag} is {text!r}: give host and port, such as 10.0.0.1:7000")
    return host, int(port)
