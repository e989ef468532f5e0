"""What a rank refuses before it loads a model, and what it does with what it is told while it serves."""

import threading
from pathlib import Path

import pytest

from tandem.core.config import Group, Limits, RankOptions, RoleName
from tandem.core.ends import EndKind
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER
from tandem.runtime import stage
from tandem.runtime.endings import EpochOver, Unusable
from tandem.runtime.stage import Stage


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Options of a rank that would go on to load its model."""
    tmp_path.chmod(0o700)
    secret = tmp_path / "secret"
    secret.write_text("a secret of this cluster")
    secret.chmod(0o600)
    monkeypatch.setattr(stage, "load_resources", lambda options: pytest.fail("it loads the model"))
    return {
        "cluster": "c",
        "group": Group(RoleName.DECODE, "d0", (2,)),
        "rank": LEADER,
        "model": "fake:2",
        "served_model_name": "m",
        "limits": Limits(),
        "registry_url": "redis://127.0.0.1:1",
        "run_dir": str(tmp_path),
        "secret_file": str(secret),
    }


def test_a_rank_with_nothing_wrong_loads_its_model(plain: dict[str, object]):
    with pytest.raises(pytest.fail.Exception, match="it loads the model"):
        Stage(RankOptions(**plain)).run()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"run_dir": "/proc/no"}, "run directory /proc/no"),
        ({"bind": "0.0.0.0"}, "bind address is '0.0.0.0'"),
        ({"registry_url": "nonsense"}, "registry-url is 'nonsense'"),
        ({"secret_file": "/proc/no"}, "cluster-secret-file is '/proc/no'"),
        ({"http_host": "256.0.0.0"}, "choose another --http-port"),
    ],
)
def test_what_is_wrong_is_told_before_the_model_is_loaded(plain: dict[str, object], wrong: dict[str, str], told: str):
    with pytest.raises(ConfigError, match=told):
        Stage(RankOptions(**plain | wrong)).run()


class Served:
    """In place of an incarnation: keeps what it is thrown."""

    def __init__(self, *, serving: bool) -> None:
        self.serving = serving
        self.thrown: list[Exception] = []
        self.told = 0

    def throw(self, error: Exception) -> None:
        self.thrown.append(error)

    def leave(self, times: int) -> None:
        self.told = times


@pytest.fixture
def serving(plain: dict[str, object]) -> tuple[Stage, Served]:
    made, served = Stage(RankOptions(**plain)), Served(serving=True)
    made._incarnation = served  # type: ignore[assignment]
    return made, served


def test_the_supervisors_word_about_ones_own_group_ends_the_epoch(serving: tuple[Stage, Served]):
    made, served = serving
    for word in ("lost p0 rank 1 was killed by SIGKILL", "lost the router", "lost d0", "", "found d0 rank 1 again"):
        made.on_word(word)
    assert served.thrown == []
    made.on_word("lost d0 rank 1 was killed by SIGKILL")
    (error,) = served.thrown
    assert isinstance(error, EpochOver)
    assert (str(error), error.kind) == ("d0 rank 1 was killed by SIGKILL", EndKind.DIED)


def test_a_ring_that_is_not_formed_loses_nobody(serving: tuple[Stage, Served]):
    made, served = serving
    served.serving = False
    made.on_word("lost d0 rank 1 was killed by SIGKILL")
    assert served.thrown == []


def test_every_signal_is_counted(serving: tuple[Stage, Served]):
    made, served = serving
    made.stop()
    assert served.told == 1
    made.stop()
    assert served.told == 2


@pytest.mark.parametrize(("thread", "kind"), [("post p0/1", EpochOver), ("registry", Unusable)])
def test_a_thread_that_dies_ends_the_epoch_or_the_process(
    thread: str, kind: type[Exception], serving: tuple[Stage, Served]
):
    made, served = serving
    dead = threading.Thread(name=thread)
    made.on_thread_death(threading.ExceptHookArgs((KeyError, KeyError("x"), None, dead)))
    (error,) = served.thrown
    assert type(error) is kind
    assert str(error) == f"thread {thread} of d0 rank 0 died: KeyError('x')"


def test_it_is_not_ready_and_says_what_it_waits_for(serving: tuple[Stage, Served]):
    made, _ = serving
    made._incarnation = None
    state = made._ask(1.0)
    assert state is not None
    assert (state["ready"], state["waiting_for"], state["epochs"], state["last_end"]) == (False, "its engine", 0, None)
    assert not state["loaded"]
