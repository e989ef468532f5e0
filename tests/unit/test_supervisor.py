"""The supervisor with small children in place of ranks: who is named, who ends, and what is left."""

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
name, kind, folder = sys.argv[1:]

def note(word):
    with open(os.path.join(folder, name + "." + word), "w") as file:
        file.write("yes")

def leash():
    while data := os.read(0, 100):
        with open(os.path.join(folder, name + ".told"), "ab") as file:
            file.write(data)
    note("leash")
    if kind != "deaf":
        os._exit(1)

if kind in ("stubborn", "deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif kind == "broken":
    print("nothing works", file=sys.stderr)
    print("no such model", file=sys.stderr)
    sys.exit(2)
else:
    signal.signal(signal.SIGTERM, lambda *_: (note("term"), os._exit(0)))
threading.Thread(target=leash, daemon=True).start()
if name == "router":
    print('READY {"url": "http://u", "admin_url": "http://a"}', flush=True)
note("up")
while True:
    signal.pause()
"""

MAIN = """
import sys
from tandem.local.child import Command
from tandem.local.readiness import Ready, Waiting
from tandem.local.run_directory import RunDirectory
from tandem.local.screen import Screen
from tandem.local.signals import Wakeup
from tandem.local.supervisor import Supervisor

child, folder, *kinds = sys.argv[1:]

class AtOnce:
    def start(self, tell):
        self.tell = tell
        tell(Waiting("a miracle"))
    def router_at(self, admin_url):
        assert admin_url == "http://a"
        self.tell(Ready({"p0.0": "127.0.0.1:1"}))
    def stop(self):
        pass

def command(name, kind):
    arguments = (sys.executable, "-I", "-S", child, name, kind, folder)
    rank = {} if name == "router" else {"group": name.split(".")[0], "member": "rank " + name.split(".")[1]}
    title = "the router" if name == "router" else "prefill p0 rank " + name.split(".")[1]
    return Command(name, title, arguments, {"CHILD": name}, **rank)

commands = [command(*kind.split("=")) for kind in kinds]
wakeup = Wakeup()
with wakeup, RunDirectory() as directory:
    directory.write_secret()
    print("DIRECTORY", directory.path, flush=True)
    supervisor = Supervisor(commands, AtOnce(), Screen("m"), started=directory.end_with_us)
    status = supervisor.run(wakeup)
sys.exit(status)
"""


class Up:
    """A supervisor process with its small children."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self.folder = folder
        child, main = folder / "child.py", folder / "main.py"
        child.write_text(textwrap.dedent(CHILD))
        main.write_text(textwrap.dedent(MAIN))
        self._stderr = (folder / "stderr").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(main), str(child), str(folder), *kinds],
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
        assert facts["url"] == "http://u"
        assert facts["http"] == {"p0.0": "127.0.0.1:1"}
        return facts["pids"]

    def said(self, name: str, word: str) -> bool:
        return (self.folder / f"{name}.{word}").exists()

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

    def start(*kinds: str) -> Up:
        started.append(Up(tmp_path, *kinds))
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


def test_a_stubborn_child_is_killed_after_its_time(up):
    cluster = up("p0.0=stubborn", "router=plain")
    pids = cluster.ready()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.status() == 0
    assert gone(pids)
    assert f"killing prefill p0 rank 0 (pid {pids['p0.0']})" in cluster.stderr
    assert "killing the router" not in cluster.stderr


def test_a_second_signal_kills_at_once(up):
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


def test_a_dead_rank_is_named_and_the_router_hears_of_it(up):
    cluster = up("p0.0=plain", "p0.1=plain", "router=plain")
    pids = cluster.ready()
    os.kill(pids["p0.1"], signal.SIGKILL)
    assert cluster.status() == 1
    assert f"tandem: prefill p0 rank 1 (pid {pids['p0.1']}) was killed by SIGKILL\n" in cluster.stderr
    assert (cluster.folder / "router.told").read_text() == "lost p0 rank 1 was killed by SIGKILL\n"
    assert gone(pids)
    assert not cluster.directory.exists()


def test_a_dead_router_ends_everything(up):
    cluster = up("p0.0=plain", "router=plain")
    pids = cluster.ready()
    os.kill(pids["router"], signal.SIGSEGV)
    assert cluster.status() == 1
    assert "the router" in cluster.stderr
    assert "SIGSEGV" in cluster.stderr
    assert gone(pids)


def test_a_child_that_does_not_start_is_named_with_its_last_words(up):
    cluster = up("p0.0=plain", "p0.1=broken", "router=stubborn")
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
