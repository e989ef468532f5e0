"""Rendered pods as processes: each on a network of its own, with a node in the middle that obeys the policies.

A pod's containers see their volumes only: the rest of the file system is read-only, and they run as the chart's user.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from chart import Object, Pod, tool
from needs import missing
from netpol import End, allowed, end_of
from waiting import eventually

GATEWAY = "169.254.1.1"
COMMAND_S = 120
LONG_S = 180
"""For whatever a busy machine is slow to do."""
USER = 10001
MOUNTED = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind {root} {root}
mount -o remount,bind,ro /
cd {root}
exec setpriv --reuid={user} --regid={user} --clear-groups --inh-caps=-all,+dac_read_search \
  --ambient-caps=-all,+dac_read_search --no-new-privs --pdeathsig KILL {command}
"""
"""The one capability lets the user read this machine's interpreter, wherever it is."""


def run(*words: str, text: str | None = None) -> str:
    """Raises CalledProcessError, OSError."""
    how: dict[str, Any] = {"check": True, "capture_output": True, "text": True, "timeout": COMMAND_S}
    return str(subprocess.run(words, input=text, **how).stdout)


class Place:
    """Where commands run: a network namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    @property
    def inside(self) -> list[str]:
        """What runs a command there."""
        return ["ip", "netns", "exec", self.namespace]

    def ask(self, url: str, body: str = "", headers: Sequence[str] = ()) -> tuple[int, str]:
        """An HTTP request from there: status (0: not reached) and body."""
        done = subprocess.run(
            [*self.inside, sys.executable, "-I", "-c", ASK, url, body, *headers],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, done.stderr
        status, _, text = done.stdout.partition("\n")
        return int(status), text

    def reaches(self, other: "Host", port: int) -> str:
        """open, closed (nobody listens there), or forbidden."""
        return run(*self.inside, sys.executable, "-I", "-c", REACH, other.end.ip, str(port)).strip()


class Host(Place):
    """A pod, or somebody else with an address."""

    def __init__(self, net: "PodNet", end: End, number: int) -> None:
        super().__init__(f"{net.prefix}-{number}")
        self.net, self.end = net, end
        self.device = f"v{os.getpid()}x{number}"
        self.root = net.folder / str(number)
        self.processes: list[subprocess.Popen[str]] = []
        self._logs: list[IO[str]] = []

    def start(self, container: Object, secrets: dict[str, dict[str, str]]) -> "subprocess.Popen[str]":
        """One container of its pod, as the kubelet starts it."""
        pod = self.end.pod
        assert pod is not None
        paths = self._volumes(pod, container, secrets)
        environment = {
            name: _moved(value, paths) for name, value in pod.environment(container, self.end.ip, secrets).items()
        }
        words = [_moved(word, paths) for word in pod.words(container, environment)]
        self.root.chmod(0o755)
        script = MOUNTED.format(root=self.root, user=USER, command=shlex.join(words))
        log = (self.root / f"{container['name']}.log").open("w+")
        self._logs.append(log)
        own = {"PATH": f"{self.net.bin}:{os.environ['PATH']}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        own |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        own |= {"TMPDIR": paths["/tmp"]} if "/tmp" in paths else {}
        reached = {name: _moved(value, self.net.services) for name, value in environment.items()}
        process = subprocess.Popen(
            [*self.inside, "unshare", "--mount", "sh", "-c", script],
            env=own | reached,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
        )
        self.processes.append(process)
        return process

    def log(self) -> str:
        """What its containers have said."""
        for each in self._logs:
            each.flush()
        return "\n".join(Path(each.name).read_text()[-4000:] for each in self._logs)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()

    def _volumes(self, pod: Pod, container: Object, secrets: dict[str, dict[str, str]]) -> dict[str, str]:
        """Mount paths to folders of this host, with what is in them."""
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", ())}
        paths = {}
        for mount in container.get("volumeMounts", ()):
            folder = self.root / mount["name"]
            paths[mount["mountPath"]] = "/dev/shm" if mount["mountPath"] == "/dev/shm" else str(folder)
            if folder.exists():
                continue
            folder.mkdir(parents=True)
            if secret := volumes[mount["name"]].get("secret"):
                for item in secret["items"]:
                    file = folder / item["path"]
                    file.write_text(secrets[secret["secretName"]][item["key"]])
                    os.chown(file, 0, USER)
                    file.chmod(secret["defaultMode"])
            else:
                folder.chmod(0o777)
        return paths


def _moved(text: str, places: dict[str, str]) -> str:
    """Every place in the text by what stands for it here."""
    if not places:
        return text
    known = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
    return re.sub(rf"(?<![\w.-])({known})(?![\w.-])", lambda found: places[found[1]], text)


ASK = """
import sys, urllib.error, urllib.request
url, body, *headers = sys.argv[1:]
named = dict(header.split(": ", 1) for header in headers)
request = urllib.request.Request(url, body.encode() or None, {"content-type": "application/json", **named})
try:
    with urllib.request.urlopen(request, timeout=100) as answer:
        print(answer.status, answer.read().decode(), sep="\\n")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), sep="\\n")
except OSError as error:
    print(0, error, sep="\\n")
"""
REACH = """
import errno, socket, sys
with socket.socket() as one:
    one.settimeout(30)
    try:
        one.connect((sys.argv[1], int(sys.argv[2])))
        print("open")
    except ConnectionRefusedError:
        print("closed")
    except OSError as error:
        print("forbidden" if error.errno in (errno.EACCES, errno.EHOSTUNREACH) else error)
"""


class PodNet:
    """A context: hosts with a wire each to a node, which forwards what the policies of `objects` allow."""

    def __init__(self, folder: Path, objects: list[Object]) -> None:
        self.folder, self.objects = folder, objects
        self.prefix = f"tandem-{os.getpid()}"
        self.node = Place(f"{self.prefix}-node")
        self.hosts: list[Host] = []
        self.services: dict[str, str] = {}
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, command in (("tandem", f"{sys.executable} -m tandem.cli"), ("python", sys.executable)):
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            script.chmod(0o755)
        self._made: list[str] = []

    def __enter__(self) -> "PodNet":
        tool("nft")
        try:
            self._make(self.node.namespace)
            forwards = "echo 1 > ip_forward && echo 0 > icmp_ratelimit"  # and says at once what is forbidden
            run(*self.node.inside, "sh", "-c", f"cd /proc/sys/net/ipv4 && {forwards}")
            run("ip", "-n", self.node.namespace, "link", "set", "lo", "up")
            run("ip", "-n", self.node.namespace, "address", "add", f"{GATEWAY}/32", "dev", "lo")
            run("unshare", "--mount", "setpriv", "--reuid", str(USER), "true")
            self._nft("table inet policies {}\n")
        except (OSError, subprocess.CalledProcessError) as error:
            self._unmake()
            missing(f"no network namespaces, mounts or nft here, they need root: {error}")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.stop()
        self._unmake()

    def add(self, end: End) -> Host:
        """Plug somebody in."""
        number = len(self.hosts) + 1
        end.ip = f"10.78.0.{number}"
        host = Host(self, end, number)
        self.hosts.append(host)
        host.root.mkdir()
        self._make(host.namespace)
        run(
            "ip",
            "link",
            "add",
            host.device,
            "netns",
            self.node.namespace,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            host.namespace,
        )
        for words in (
            ["address", "add", f"{end.ip}/32", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
            ["route", "add", GATEWAY, "dev", "eth0", "scope", "link"],
            ["route", "add", "default", "via", GATEWAY],
        ):
            run("ip", "-n", host.namespace, *words)
        run("ip", "-n", self.node.namespace, "link", "set", host.device, "up")
        run("ip", "-n", self.node.namespace, "route", "add", f"{end.ip}/32", "dev", host.device)
        return host

    def pod(self, pod: Pod) -> Host:
        """One of the release's pods."""
        return self.add(end_of(pod))

    def obey(self) -> None:
        """The node forwards what is allowed between those who are there now, and refuses the rest by name."""
        rules = [
            f"ip saddr {source.end.ip} ip daddr {target.end.ip} {protocol.lower()} dport {first}-{last} accept"
            for source in self.hosts
            for target in self.hosts
            if source is not target
            for protocol, first, last in sorted(allowed(self.objects, source.end, target.end))
        ]
        self._nft(
            "flush table inet policies\ntable inet policies {\n chain forward {\n"
            "  type filter hook forward priority 0; policy drop;\n  ct state established,related accept\n"
            + "".join(f"  {rule}\n" for rule in rules)
            + "  reject with icmpx type admin-prohibited\n }\n}\n"
        )

    def _nft(self, rules: str) -> None:
        found = tool("nft")
        libraries = Path(found).parents[1] / "lib" / f"{os.uname().machine}-linux-gnu"
        run("env", f"LD_LIBRARY_PATH={libraries}", *self.node.inside, found, "-f", "-", text=rules)

    def _make(self, namespace: str) -> None:
        run("ip", "netns", "add", namespace)
        self._made.append(namespace)

    def _unmake(self) -> None:
        for namespace in self._made:
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                run("ip", "netns", "delete", namespace)


def until_ready(host: Host, url: str, probing: Place) -> None:
    """A probe of the kubelet's, until it succeeds."""
    assert host.processes

    def ready() -> bool:
        assert any(process.poll() is None for process in host.processes), host.log()
        return probing.ask(url)[0] == 200

    eventually(ready, f"{url} answers", LONG_S)
