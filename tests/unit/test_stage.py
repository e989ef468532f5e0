"""What a rank refuses before it loads a model: an operator should not wait for minutes to read of a wrong flag."""

from pathlib import Path

import pytest

from tandem.core.config import Group, Limits, RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER
from tandem.runtime import stage
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
