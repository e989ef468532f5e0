"""A whole cluster on this machine, as processes: what `tandem up` runs."""

import errno
import os
import socket
import sys
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

import msgspec

from tandem.core.commands import (
    StartOptions,
    environment,
    rank_arguments,
    rank_name,
    router_arguments,
    router_options,
    topology_options,
)
from tandem.core.config import RankOptions, RouterOptions, Topology
from tandem.core.errors import ConfigError
from tandem.local.child import Command
from tandem.local.readiness import Look, Looking
from tandem.local.registry import members_reader, running_registry
from tandem.local.run_directory import RunDirectory
from tandem.local.screen import Screen
from tandem.local.signals import Wakeup
from tandem.local.supervisor import ROUTER, Supervisor
from tandem.local.wanted import Wanted, default_threads, engine_of, served_name, topology_of
from tandem.runtime.places import check_folder

ADMIN_HOST = "127.0.0.1"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def up(wanted: Wanted) -> int:
    """Run a local cluster until a signal; returns the exit status. Raises ConfigError."""
    topology = topology_of(wanted)
    check_port("--port", topology.host, topology.port)
    check_port("--admin-port", ADMIN_HOST, topology.admin_port)
    check_folder("--dump-dir", wanted.dump_dir)
    check_folder("--record-dir", wanted.record_dir)
    wakeup: Wakeup[Look] = Wakeup()
    with wakeup, RunDirectory() as directory, running_registry(topology.registry_url, directory) as registry:
        secret_file = directory.write_secret()
        start = StartOptions(
            served_model_name=wanted.served_model_name or served_name(wanted.model),
            registry_url=registry.url,
            run_dir=str(directory.path),
            secret_file=str(secret_file),
            threads=wanted.threads or default_threads(topology, engine_of(topology)),
            dump_dir=wanted.dump_dir,
            record_dir=wanted.record_dir,
            timer_scale=wanted.timer_scale,
            drain_s=wanted.drain_s,
            supervised=True,
            api_key=wanted.api_key,
            admin_api_key=wanted.admin_api_key,
        )
        names = [rank_name(group, rank) for group, rank in topology.ranks()]
        readiness = Looking(names, members_reader(registry.url, topology.cluster, secret_file), wanted.admin_api_key)
        supervisor = Supervisor(
            commands_of(topology, start),
            readiness,
            Screen(start.served_model_name, asks_for_a_key=bool(wanted.api_key or wanted.frontend.api_keys_file)),
            registry=registry,
            started=directory.end_with_us,
            again=partial(command_again, router_options(topology, start)),
            drain_s=wanted.drain_s,
            timer_scale=wanted.timer_scale,
        )
        return supervisor.run(wakeup)


def check_port(flag: str, host: str, port: int) -> None:
    """Better here and now than later in the router. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host is {host!r}: it is no address of this host") from None
        why = os.strerror(error.errno) if error.errno else error
        text = f"{flag} is {port}: {host}:{port} cannot be used, {why}; give another, or 0 for any free one"
        raise ConfigError(text) from None


def commands_of(topology: Topology, start: StartOptions) -> list[Command]:
    """Every process, ranks first."""
    ranks = [rank_command(options) for options in topology_options(topology, start)]
    return [*ranks, router_command(router_options(topology, start))]


def command_again(options: RouterOptions, command: Command, urls: Mapping[str, str]) -> Command:
    """How a process is started once more: a router on the ports that its clients know, others as before."""
    if command.name != ROUTER:
        return command
    port, admin_port = (urlsplit(urls[name]).port for name in ("url", "admin_url"))
    return router_command(msgspec.structs.replace(options, port=port, admin_port=admin_port))


def rank_command(options: RankOptions) -> Command:
    """One rank's process."""
    group, rank = options.group, options.rank
    return Command(
        name=rank_name(group, rank),
        title=f"{group.role.value} {group.name} rank {rank}",
        arguments=tandem_command(rank_arguments(options)),
        environment=environment(options) | {name: str(options.threads) for name in THREAD_VARIABLES},
        group=group.name,
        member=f"rank {rank}",
    )


def router_command(options: RouterOptions) -> Command:
    """The router's process."""
    return Command(ROUTER, "the router", tandem_command(router_arguments(options)), environment(options))


def tandem_command(arguments: list[str]) -> tuple[str, ...]:
    """`tandem ARGUMENTS` with this interpreter; -P: the current folder is no place for modules."""
    return (sys.executable, "-P", "-m", "tandem.cli", *arguments)
