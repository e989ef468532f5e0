"""The supervisor with small children in place of ranks: who is named, started again, who ends, and what is left."""

import json
import os
import selectors
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import eventually

DEADLINE_S = 30.0

CHILD = """
import os, signal, sys, threading
name, kind, folder, *ports = sys.argv[1:]

def path(word):
    return os.path.join(folder, name + "." + word)

def note(word):
    with open(path(word), "a") as file:
        file.write(str(os.getpid()) + "\\n")

def leash():
    while data := os.read(0, 100):
        with open(path("told"), "ab") as file:
            file.write(data)
    note("leash")
    if kind != "deaf":
        os._exit(1)

def stop(*_):
    if kind == "busy" and not os.path.exists(path("term")):
        note("term")
        return
    note("term")
    os._exit(0)

if kind in ("stubborn", "deaf", "mute"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif kind == "broken" or os.path.exists(path("broken")):
    print("nothing works", file=sys.stderr)
    print("12:00:00.123 ERROR   p0.1 no such model", file=sys.stderr)
    sys.exit(2)
else:
    signal.signal(signal.SIGTERM, stop)
threading.Thread(target=leash, daemon=True).start()
if name == "router":
    with open(path("ports"), "w") as file:
        file.write(" ".join(ports))
    if kind == "mute":
        signal.pause()
    print('READY {"url": "http://u:1", "admin_url": "http://127.0.0.1:2"}', flush=True)
note("up")
while True:
    signal.pause()
"""

MAIN = """
import dataclasses, os, sys
from tandem.local.child import Command
from tandem.local.readiness import Look
from tandem.local.run_directory import RunDirectory
from tandem.local.screen import Screen
from tandem.local.signals import Wakeup
from tandem.local.supervisor import Supervisor

child, folder, drain_s, *kinds = sys.argv[1:]

class AtOnce:
    # Everything serves as soon as it runs, the router once it listens.
    def start(self, tell):
        self.tell = tell
        tell(Look(self.revision, {}, "a miracle"))
    def expect(self, expected):
        self.revision = expected.revision
        if expected.admin_url and len(expected.started_ms) == len(kinds):
            assert expected.admin_url == "http://127.0.0.1:2"
            self.tell(Look(expected.revision, {"p0.0": "127.0.0.1:1"}, ""))
    def stop(self):
        pass

def command(name, kind):
    arguments = (sys.executable, "-I", "-S", child, name, kind, folder)
    rank = {} if name == "router" else {"group": name.split(".")[0], "member": "rank " + name.split(".")[1]}
    title = "the router" if name == "router" else "prefill p0 rank " + name.split(".")[1]
    return Command(name, title, arguments, {"CHILD": name}, **rank)

def again(command, urls):
    if os.path.exists(os.path.join(folder, command.name + ".lost")):
        return dataclasses.replace(command, arguments=("/no/such/program",))
    return dataclasses.replace(command, arguments=(*command.arguments, urls["url"], urls["admin_url"]))

commands = [command(*kind.split("=")) for kind in kinds]
wakeup = Wakeup()
with wakeup, RunDirectory() as directory:
    directory.write_secret()
    print("DIRECTORY", directory.path, flush=True)
    supervisor = Supervisor(
        commands,
        AtOnce(),
        Screen("m"),
        started=directory.end_with_us,
        again=again,
        drain_s=float(drain_s),
        timer_scale=1000,  # these children answer no /livez
    )
    status = supervisor.run(wakeup)
sys.exit(status)
"""


class Up:
    """A supervisor process with its small children."""

    def __init__(self, folder: Path, *kinds: str, drain_s: float = 30.0) -> None:
        self.folder = folder
        child, main = folder / "child.py", folder / "main.py"
        child.write_text(textwrap.dedent(CHILD))
        main.write_text(textwrap.dedent(MAIN))
        self._stderr = (folder / "stderr").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(main), str(child), str(folder), str(drain_s), *kinds],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._rest = b""
        self.directory = Path(self.read_line("DIRECTORY ").split()[1])
        self.names = [kind.split("=")[0] for kind in kinds]

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def read_line(self, start: str) -> str:
        """The next line of standard output that begins so."""
        out = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while True:
                while b"\n" in self._rest:
                    line, _, self._rest = self._rest.partition(b"\n")
                    if line.startswith(start.encode()):
                        return line.decode()
                assert selector.select(DEADLINE_S), f"no line {start!r}: {self.stderr}"
                data = os.read(out, 65536)
                assert data, f"ended without a line {start!r}: {self.stderr}"
                self._rest += data

    def ready(self) -> dict[str, int]:
        """Pids by name, once all serve."""
        facts = json.loads(self.read_line("READY ").removeprefix("READY "))
        eventually(lambda: all(self.said(name, "up") for name in self.names))
        assert facts["url"] == "http://u:1"
        assert facts["http"] == {"p0.0": "127.0.0.1:1"}
        return facts["pids"]

    def said(self, name: str, word: str) -> bool:
        return (self.folder / f"{name}.{word}").exists()

    def hears(self, name: str, line: str) -> None:
        """Wait until this child has been told exactly this."""
        path = self.folder / f"{name}.told"
        eventually(lambda: path.exists() and path.read_text() == line, f"{name} is told {line!r}")

    def touch(self, name: str, word: str) -> Path:
        """Children look for some of these."""
        path = self.folder / f"{name}.{word}"
        path.touch()
        return path

    def status(self) -> int:
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        self._stderr.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*kinds: str, **how: float) -> Up:
        started.append(Up(tmp_path, *kinds, **how))
        return started[-1]

    yield start
    for each in started:
        each.close()


def gone(pids: dict[str, int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_every_child_in_order_and_leaves_nothing(up, number):
    cluster = up("p0.0=plain", "p0.1=plain", "router=plain")
    pids = cluster.ready()
    assert set(pids) == {"p0.0", "p0.1", "router"}
    assert cluster.directory.stat().st_mode & 0o777 == 0o700
    assert (cluster.directory / "secret").stat().st_mode & 0o777 == 0o600
    cluster.process.send_signal(number)
    assert cluster.status() == 0
    assert gone(pids)
    assert not cluster.directory.exists()
    assert all(cluster.said(name, "term") for name in cluster.names), "SIGTERM comes before anything else"


def test_ctrl_c_on_the_terminal_reaches_only_the_supervisor(up):
    cluster = up("p0.0=plain", "router=plain")
    pids = cluster.ready()
    groups = {os.getpgid(pid) for pid in pids.values()}
    assert os.getpgid(cluster.process.pid) not in groups
    os.killpg(cluster.process.pid, signal.SIGINT)
    assert cluster.status() == 0


def test_a_signal_that_comes_twice_at_once_is_one(up):
    cluster = up("p0.0=plain", "router=plain")
    cluster.ready()
    cluster.process.send_signal(signal.SIGINT)
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.status() == 0
    assert "killing" not in cluster.stderr


def test_the_router_finishes_what_is_open_before_the_ranks_are_told(up):
    cluster = up("p0.0=plain", "router=busy")
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGINT)
    eventually(lambda: cluster.said("router", "term"))
    assert not cluster.said("p0.0", "term")
    os.kill(pids["router"], signal.SIGTERM)
    assert cluster.status() == 0
    assert cluster.said("p0.0", "term")
    assert "SIGINT: open requests may finish within 30 s, a second signal ends them\n" in cluster.stderr


def test_who_is_not_done_in_time_is_killed(up):
    cluster = up("p0.0=plain", "router=busy", drain_s=0.0)
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.status() == 0
    assert gone(pids)
    assert f"killing the router (pid {pids['router']})\n" in cluster.stderr


def test_a_stubborn_child_is_killed_after_its_time(up):
    cluster = up("p0.0=stubborn", "router=plain", drain_s=0.0)
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.status() == 0
    assert gone(pids)
    assert f"killing prefill p0 rank 0 (pid {pids['p0.0']})" in cluster.stderr
    assert "killing the router" not in cluster.stderr


def test_a_second_signal_ends_all_at_once(up):
    cluster = up("p0.0=plain", "router=busy")
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGINT)
    eventually(lambda: cluster.said("router", "term"))

    def ended() -> bool:
        cluster.process.send_signal(signal.SIGINT)
        return cluster.process.poll() is not None

    eventually(ended)
    assert cluster.status() == 0
    assert gone(pids)
    assert "SIGINT: ending 2 processes\n" in cluster.stderr
    assert "killing" not in cluster.stderr


def test_more_signals_kill_who_does_not_end(up):
    cluster = up("p0.0=stubborn", "router=plain")
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGINT)
    eventually(lambda: cluster.said("router", "term"))

    def ended() -> bool:
        cluster.process.send_signal(signal.SIGINT)
        return cluster.process.poll() is not None

    eventually(ended)
    assert cluster.status() == 0
    assert gone(pids)
    assert f"killing prefill p0 rank 0 (pid {pids['p0.0']})" in cluster.stderr


def test_a_dead_rank_is_named_and_started_again_and_all_hear_of_it(up):
    cluster = up("p0.0=plain", "p0.1=plain", "router=plain")
    pids = cluster.ready()
    os.kill(pids["p0.1"], signal.SIGKILL)
    later = cluster.ready()
    assert (
        f"tandem: prefill p0 rank 1 (pid {pids['p0.1']}) was killed by SIGKILL; starting it again\n" in cluster.stderr
    )
    assert {name for name in pids if pids[name] != later[name]} == {"p0.1"}
    for name in ("router", "p0.0"):
        cluster.hears(name, "lost p0 rank 1 was killed by SIGKILL\n")
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.status() == 0
    assert gone(pids | later)
    assert not cluster.directory.exists()


def test_a_rank_that_ends_by_itself_is_started_again_too(up):
    cluster = up("p0.0=plain", "router=plain")
    pids = cluster.ready()
    os.kill(pids["p0.0"], signal.SIGTERM)
    assert cluster.ready()["p0.0"] != pids["p0.0"]
    assert f"prefill p0 rank 0 (pid {pids['p0.0']}) exited with status 0; starting it again\n" in cluster.stderr


def test_a_dead_router_comes_back_on_its_ports(up):
    cluster = up("p0.0=plain", "router=plain")
    pids = cluster.ready()
    os.kill(pids["router"], signal.SIGSEGV)
    later = cluster.ready()
    assert later["router"] != pids["router"]
    assert f"tandem: the router (pid {pids['router']}) was killed by SIGSEGV; starting it again\n" in cluster.stderr
    assert (cluster.folder / "router.ports").read_text() == "http://u:1 http://127.0.0.1:2"
    assert not cluster.said("p0.0", "told"), "no rank has to do anything about it"


def test_a_process_that_keeps_dying_is_started_after_longer_and_longer_waits(up):
    cluster = up("p0.0=plain", "router=plain")
    pids = cluster.ready()
    broken = cluster.touch("p0.0", "broken")
    os.kill(pids["p0.0"], signal.SIGKILL)
    eventually(lambda: "exited with status 2: no such model; starting it again in 2 s\n" in cluster.stderr)
    assert "exited with status 2: no such model; starting it again in 1 s\n" in cluster.stderr
    broken.unlink()
    assert cluster.ready()["p0.0"] != pids["p0.0"]


def test_a_process_that_cannot_be_started_is_tried_again_and_waits_for_nobody(up):
    cluster = up("p0.0=plain", "router=plain")
    pids = cluster.ready()
    cluster.touch("p0.0", "lost")
    os.kill(pids["p0.0"], signal.SIGKILL)
    eventually(lambda: "rank 0 cannot be started: [Errno 2]" in cluster.stderr)
    cluster.touch("router", "lost")
    os.kill(pids["router"], signal.SIGKILL)
    eventually(lambda: "router cannot be started: [Errno 2]" in cluster.stderr)
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.status() == 0


def test_while_the_cluster_ends_nothing_is_started_and_the_router_still_hears(up):
    cluster = up("p0.0=plain", "router=busy")
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGINT)
    eventually(lambda: cluster.said("router", "term"))
    os.kill(pids["p0.0"], signal.SIGKILL)
    cluster.hears("router", "lost p0 rank 0 was killed by SIGKILL\n")
    os.kill(pids["router"], signal.SIGTERM)
    assert cluster.status() == 0
    assert "starting it again" not in cluster.stderr


def test_a_child_that_does_not_start_is_named_with_its_last_words(up):
    cluster = up("p0.0=plain", "p0.1=broken", "router=mute")
    assert cluster.status() == 1
    assert "exited with status 2: no such model\n" in cluster.stderr
    assert "nothing works\n" in cluster.stderr
    assert not cluster.directory.exists()


@pytest.mark.parametrize("kind", ["plain", "stubborn", "deaf"])
def test_when_the_supervisor_is_killed_nothing_is_left(up, kind):
    cluster = up(f"p0.0={kind}", "router=plain")
    pids = cluster.ready()
    cluster.process.kill()
    eventually(lambda: gone(pids))
    eventually(lambda: not cluster.directory.exists())
    assert cluster.said("p0.0", "leash")


def test_the_router_understands_what_the_supervisor_says():
    from router.app import Router

    heard = []

    class Listener(Router):
        def __init__(self) -> None:
            pass

        def group_lost(self, name: str, cause: str) -> None:
            heard.append((name, cause))

    Listener().hear("lost p0 rank 1 was killed by SIGKILL")
    assert heard == [("p0", "rank 1 was killed by SIGKILL")]
