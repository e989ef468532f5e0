"""Ranks and a router that are started one by one, as without a supervisor: nobody restarts them but the test."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from cluster import State, state_at
from ports import free_ports
from waiting import DEADLINE_S, eventually

from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.runtime.embedded import EmbeddedRegistry
from tandem.runtime.entries import Entries
from tandem.runtime.peer_list import PeerList, places_of
from tandem.runtime.registry import Directory, Registry

CLUSTER = "by-hand"
SECRET = b"a secret of this cluster"
ENTRY = (sys.executable, "-P", "-m", "tandem.cli")
ROLES = {"p": "prefill", "d": "decode", "c": "colocated"}
READY = "READY "
LONG_S = DEADLINE_S


class ByHand:
    """Like `Cluster`, for those who ask it for answers; `start("p0.1")` starts a rank, also one that has died.

    `entry` is what runs instead of the `tandem` command, for all ranks. With `peers`, the names of all ranks, there is
    no registry: they ask each other.
    """

    def __init__(self, *arguments: str, size: int = 2, entry: Sequence[str] = ENTRY, peers: Sequence[str] = ()) -> None:
        self.url = self.admin_url = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments = arguments
        self.size = size
        self._entry = entry
        self._ports = dict(zip(peers, free_ports(len(peers)), strict=True))
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "ByHand":
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(self._undo.enter_context(tempfile.TemporaryDirectory(prefix="tandem-", dir=shm)))
        self.dumps = self.folder / "dumps"
        secret = self.folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        found_by = self._peers() if self._ports else self._begin_registry()
        self._common = [found_by, f"--cluster-secret-file={secret}", f"--cluster={CLUSTER}"]
        self._undo.callback(self._directory.close)
        self._undo.callback(self._kill_all)
        return self

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        if kind is not None:
            print(self.stderr(), file=sys.stderr)
        self._undo.close()

    def _begin_registry(self) -> str:
        registry = EmbeddedRegistry(self.folder / "registry")
        self._undo.callback(registry.stop)
        self._directory: Directory = Registry(registry.url, CLUSTER, SECRET)
        return f"--registry-url={registry.url}"

    def _peers(self) -> str:
        peers = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self._directory = PeerList(places_of(peers), Entries(CLUSTER, SECRET))
        return f"--peers={peers}"

    # processes

    def start(self, *names: str, more: Sequence[str] = ()) -> None:
        """Start these ranks, with more arguments than all others have."""
        for name in names:
            group, _, rank = name.partition(".")
            flags = [f"--group={group}", f"--rank={rank}", f"--pp-size={self.size}", f"--run-dir={self.folder}"]
            flags.append(f"--http-port={self._ports.get(name, 0)}")
            command = [*self._entry, ROLES[group[0]], *flags, f"--dump-dir={self.dumps}", *self._common]
            with open(self.folder / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    [*command, *self._arguments, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def start_router(self, *arguments: str) -> None:
        """Start the router, and wait until it listens."""
        kept = [word for word in self._arguments if word.startswith(("--model", "--timer-scale"))]
        command = [*ENTRY, "router", "--port=0", *kept, *self._common, *arguments]
        with open(self.folder / "router.log", "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        self.processes["router"] = process
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith(READY), self.stderr()
        facts = json.loads(line.removeprefix(READY))
        self.url, self.admin_url = facts["url"], facts["admin_url"]

    def send(self, name: str, number: signal.Signals) -> None:
        """A signal to one process."""
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is dead."""
        self.send(name, signal.SIGKILL)
        self.processes[name].wait()

    def status(self, name: str, within_s: float = LONG_S) -> int:
        """The exit status of a process that ends."""
        return self.processes[name].wait(within_s)

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def running(self, name: str) -> bool:
        return self.processes[name].poll() is None

    # what they say

    def log(self, name: str) -> str:
        """What a rank has written, in all of its lives."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stderr(self) -> str:
        return "".join(self.log(path.stem) for path in sorted(self.folder.glob("*.log")))

    def members(self) -> dict[str, Member]:
        """Who is there, by name; on a busy machine a registry may need a while."""

        def read() -> list[list[Member]]:
            with contextlib.suppress(redis.RedisError):
                return [self._directory.members()]
            return []

        (found,) = eventually(read, "the registry answers")
        return {f"{member.group.name}.{member.rank}": member for member in found}

    def state(self, name: str) -> State:
        """GET /state of one rank."""
        return eventually(lambda: state_at(self.members()[name].http), f"{name} gets round to telling its state")

    def get(self, name: str, path: str) -> tuple[int, State]:
        """GET a path of a rank's own port."""
        port = self.members()[name].http
        try:
            with urllib.request.urlopen(f"http://{port}{path}", timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def formed(self, *groups: str, above: int = 0) -> int:
        """Wait until all ranks of these groups serve in an epoch above this one; the highest of them."""
        names = [f"{group}.{RankId(rank)}" for group in groups for rank in range(self.size)]

        def epochs() -> list[int]:
            members = self.members()
            found = [members[name].epoch if name in members else 0 for name in names]
            return found if min(found) > above else []

        return max(eventually(epochs, f"{groups} serve in an epoch above {above}"))

    def usable(self) -> None:
        """Wait until the router has heard every group in the epoch that the registry shows."""

        def heard() -> bool:
            usable = [worker for worker in self.workers() if worker["usable"]]
            seen = {f"{one['name']}.{member['rank']}": member["epoch"] for one in usable for member in one["members"]}
            return seen == {name: member.epoch for name, member in self.members().items()}

        eventually(heard, "the router has heard all groups")

    def workers(self) -> list[State]:
        """The groups, as the router knows them."""
        with urllib.request.urlopen(f"{self.admin_url}/workers", timeout=DEADLINE_S) as answer:
            return list(json.load(answer)["workers"])

    def dumped(self) -> list[Path]:
        """The flight records that were left behind."""
        return sorted(self.dumps.glob("*.dump"))

    def _kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@contextlib.contextmanager
def pair(*arguments: str, **how: Any) -> Iterator[ByHand]:
    """A prefill and a decode group and a router, that serve."""
    with ByHand(*arguments, **how) as cluster:
        cluster.start(*(f"{group}.{rank}" for group in ("p0", "d0") for rank in range(cluster.size)))
        cluster.start_router()
        cluster.formed("p0", "d0")
        cluster.usable()
        yield cluster
