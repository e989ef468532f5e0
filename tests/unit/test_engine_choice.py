"""Which engine computes a model: the one that was asked for or the best there is, and the reason is told."""

import msgspec
import pytest

from consensus.forming import Forming
from kvtransfer.handshake import mismatch
from tandem.core.config import EngineName, Group, Limits, RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, LayerId, RankId
from tandem.core.messages import Hello, Join, Region
from tandem.engine import load
from tandem.engine.load import choose
from tandem.engine.model import bundled_model_path, fingerprint, read_shape
from tandem.engine.shape import ModelShape
from tandem.runtime.resources import load_resources
from tandem.runtime.stage import Stage

PAGE_SIZE = 16


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return read_shape(str(bundled_model_path()))


def put(monkeypatch: pytest.MonkeyPatch, name: str, obstacle: str) -> None:
    """This is in the engine's way; empty: nothing is."""
    monkeypatch.setattr(f"tandem.engine.{name}.build.obstacle", lambda shape, dtype, page_size: obstacle)


def test_auto_is_the_cpu_engine_where_it_can_be_had(shape: ModelShape, monkeypatch: pytest.MonkeyPatch):
    put(monkeypatch, "cpu", "")
    for dtype in ("auto", "bfloat16"):
        chosen = choose(shape, dtype, "auto", PAGE_SIZE)
        assert (chosen.name, chosen.dtype) == ("cpu", "bfloat16")


def test_auto_is_torch_otherwise_and_says_what_was_in_the_way(shape: ModelShape, monkeypatch: pytest.MonkeyPatch):
    put(monkeypatch, "cpu", "no compiler is here")
    chosen = choose(shape, "bfloat16", "auto", PAGE_SIZE)
    assert (chosen.name, chosen.dtype) == ("torch", "bfloat16")
    assert "no compiler is here" in chosen.why
    assert "no compiler is here" in str(chosen)


def test_full_precision_is_torchs_alone(shape: ModelShape, monkeypatch: pytest.MonkeyPatch):
    put(monkeypatch, "cpu", "")
    chosen = choose(shape, "float32", "auto", PAGE_SIZE)
    assert (chosen.name, chosen.dtype) == ("torch", "float32")
    assert "--dtype is float32" in chosen.why
    with pytest.raises(ConfigError, match="--engine is cpu, but it computes in bfloat16, and --dtype is float32"):
        choose(shape, "float32", "cpu", PAGE_SIZE)


@pytest.mark.parametrize("name", ["cpu", "flashinfer"])
def test_an_engine_that_cannot_be_had_is_refused_with_the_reason(
    name: EngineName, shape: ModelShape, monkeypatch: pytest.MonkeyPatch
):
    put(monkeypatch, name, "there is no such device")
    with pytest.raises(ConfigError, match=f"--engine is {name}, but there is no such device: use another one"):
        choose(shape, "auto", name, PAGE_SIZE)
    put(monkeypatch, name, "")
    chosen = choose(shape, "auto", name, PAGE_SIZE)
    assert (chosen.name, chosen.dtype, chosen.why) == (name, "bfloat16", "as told")


def test_only_the_fake_engine_computes_fake_models_and_no_others(shape: ModelShape):
    for wanted in ("auto", "fake"):
        assert choose(read_shape("fake:2"), "auto", wanted, PAGE_SIZE).name == "fake"
    for wanted in ("cpu", "torch", "flashinfer"):
        with pytest.raises(ConfigError, match=f"--engine is {wanted}, but 'fake:2' is a fake model"):
            choose(read_shape("fake:2"), "auto", wanted, PAGE_SIZE)
    with pytest.raises(ConfigError, match=r"--engine is fake, but .* is a real model"):
        choose(shape, "auto", "fake", PAGE_SIZE)


def test_engines_with_another_order_in_their_pages_have_another_fingerprint(shape: ModelShape):
    prints = {name: fingerprint(shape, "bfloat16", PAGE_SIZE, load.LAYOUTS[name]) for name in load.LAYOUTS}
    assert prints["cpu"] != prints["torch"]
    assert prints["flashinfer"] == prints["torch"]


def joining(rank: int, fingerprint: str, engine: str) -> Join:
    return Join(RankId(rank), 1, 1, Limits(), fingerprint, engine=engine)


def test_ranks_that_chose_otherwise_are_named_with_their_engines():
    forming = Forming(2)
    forming.on(joining(0, "f", "cpu, bfloat16"))
    with pytest.raises(ConfigError, match="have cpu, bfloat16 and torch, bfloat16"):
        forming.on(joining(1, "g", "torch, bfloat16"))


def test_groups_that_chose_otherwise_are_named_with_their_engines():
    region = Region(1 << 20, LayerId(0), LayerId(2), 8, 64)
    mine = Hello("p", LEADER, 1, 1, "f", "t", "e", region, engine="cpu, bfloat16")
    theirs = msgspec.structs.replace(mine, group="d", engine="torch, bfloat16")
    assert mismatch(mine, theirs) is None, "what must be equal is in the fingerprint"
    told = mismatch(mine, msgspec.structs.replace(theirs, fingerprint="g"))
    assert told == "fingerprint: p/0 has f, d/0 has g; their engines are cpu, bfloat16 and torch, bfloat16"


def test_a_rank_tells_its_engine_as_soon_as_it_has_one(monkeypatch: pytest.MonkeyPatch):
    options = RankOptions(
        cluster="c",
        group=Group(RoleName.DECODE, "d0", (2,)),
        rank=LEADER,
        model="fake:2",
        served_model_name="m",
        limits=Limits(num_pages=4),
        registry_url="",
        run_dir="",
    )
    stage = Stage(options)
    state = stage._ask(1.0)
    assert state is not None
    assert "engine" not in state
    stage._resources = load_resources(options)
    state = stage._ask(1.0)
    assert state is not None
    assert (state["engine"], state["engine_why"]) == ("fake", "the model is fake")
