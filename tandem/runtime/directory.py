"""Who is there: by a registry, or by asking a list of peers."""

from collections.abc import Callable

from tandem.core.config import RankOptions, RouterOptions
from tandem.core.errors import ConfigError
from tandem.runtime.entries import Entries
from tandem.runtime.peer_list import PeerList, places_of
from tandem.runtime.registry import Directory, Registry


def directory_of(
    options: RankOptions | RouterOptions, secret: bytes, show: Callable[[bytes], None] = lambda entry: None
) -> Directory:
    """What the options ask for; `show` gets what this rank's own port tells its peers. Raises ConfigError."""
    check_directory(options)
    if not options.peers:
        return Registry(options.registry_url, options.cluster, secret)
    return PeerList(places_of(options.peers), Entries(options.cluster, secret), show)


def check_directory(options: RankOptions | RouterOptions) -> None:
    """Raises ConfigError unless exactly one way to find the others is given, and the others can find us."""
    if bool(options.registry_url) == bool(options.peers):
        both = "both are" if options.peers else "neither is"
        raise ConfigError(f"{both} given: find the other processes by --registry-url or by --peers, one of them")
    if not options.peers:
        return
    places_of(options.peers)
    if isinstance(options, RankOptions) and not options.http_port:
        raise ConfigError("--http-port is 0: with --peers give the port under which the others name this rank")
