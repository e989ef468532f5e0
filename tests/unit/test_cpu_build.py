"""The native code is built once for all ranks of a user; where it cannot be, the reason is told."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tandem.engine.cpu import build
from tandem.engine.cpu.build import ISAS, BuildError, isas_of_this_machine, library, misfit, obstacle
from tandem.engine.model import bundled_model_path, read_shape
from tandem.engine.shape import ModelShape

ASK = """
import pathlib, sys
from tandem.engine.cpu import build
build.BESIDE = pathlib.Path(sys.argv[1])
print(build.library(build.ISAS[0]))
"""


@pytest.fixture
def shape() -> ModelShape:
    return read_shape(str(bundled_model_path()))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "BESIDE", tmp_path / "beside")
    monkeypatch.setattr(build, "isas_of_this_machine", lambda: list(ISAS))
    return tmp_path / "cache" / "tandem" / "cpu"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A stand-in that runs `script`; each run adds a line to the file that is returned."""

    def make(script: str) -> Path:
        log, program = tmp_path / "runs", tmp_path / "compiler"
        program.write_text(f"#!/bin/sh\necho run >> {log}\nfor to; do :; done\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setenv("CXX", str(program))
        return log

    return make


MAKES_IT = 'echo code > "$to"'


def test_what_was_built_is_found_again_without_a_compiler(
    cache: Path, compiler: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(MAKES_IT)
    made = library(ISAS[0])
    assert made.parent == cache
    assert made.read_bytes().startswith(b"code\n")
    monkeypatch.setenv("CXX", "/nowhere")
    assert library(ISAS[0]) == made
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".so"], "nothing half done stays"


def test_every_instruction_set_and_every_change_has_a_build_of_its_own(
    cache: Path, compiler: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = compiler(MAKES_IT)
    made = {library(isa) for isa in ISAS}
    sources = tmp_path / "sources"
    sources.mkdir()
    for source in [*build.SOURCES.glob("*.h"), *build.SOURCES.glob("*.cpp")]:
        (sources / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "SOURCES", sources)
    assert {library(isa) for isa in ISAS} == made, "the same sources elsewhere are the same"
    with (sources / "simd.h").open("a") as changed:
        changed.write("// other\n")
    made |= {library(isa) for isa in ISAS}
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    made |= {library(isa) for isa in ISAS}
    assert len(made) == 3 * len(ISAS) == log.read_text().count("run")


def test_ranks_that_start_together_compile_once(cache: Path, compiler: Callable[[str], Path], tmp_path: Path) -> None:
    """The first one's compiler does not end before the others have been started."""
    go = tmp_path / "go"
    log = compiler(f"while [ ! -e {go} ]; do sleep 0.05; done; {MAKES_IT}")
    command = [sys.executable, "-c", ASK, str(build.BESIDE)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    go.touch()
    told = {rank.communicate(timeout=120)[0].strip() for rank in ranks}
    found = [path for path in cache.iterdir() if path.suffix == ".so"]
    assert told == {str(each) for each in found}
    assert len(found) == 1
    assert log.read_text().count("run") == 1


def test_a_build_beside_the_sources_comes_first(cache: Path, compiler: Callable[[str], Path]) -> None:
    log = compiler(MAKES_IT)
    build.main()
    assert library(ISAS[1]).parent == build.BESIDE
    assert log.read_text().count("run") == len(ISAS)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'simd.h: error: no such type' >&2; exit 3", "failed with status 3: simd.h: error: no such type"),
        ("exit 1", "failed with status 1: no message"),
    ],
)
def test_a_compiler_that_fails_is_an_obstacle_and_leaves_nothing(
    script: str, why: str, shape: ModelShape, cache: Path, compiler: Callable[[str], Path]
) -> None:
    compiler(script)
    assert why in obstacle(shape, "bfloat16", 16)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_what_cannot_be_loaded_is_built_once_more_and_then_an_obstacle(
    shape: ModelShape, cache: Path, compiler: Callable[[str], Path]
) -> None:
    """Such as a library of C++ that the image lacks: here it is not even a library."""
    log = compiler(MAKES_IT)
    assert f"the native code in '{cache / library(ISAS[0]).name}' cannot be loaded" in obstacle(shape, "bfloat16", 16)
    assert log.read_text().count("run") == 2


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library can be loaded here if it is code."""

    def load(path: Path) -> Path:
        if not path.read_bytes().startswith(b"code\n"):
            raise OSError(f"{path}: invalid ELF header")
        return path

    monkeypatch.setattr(build, "Native", load)


DAMAGE = {
    "empty": lambda whole: b"",
    "cut short": lambda whole: whole[:-1],
    "cut to nothing but its seal": lambda whole: whole[5:],
    "overwritten": lambda whole: b"C" + whole[1:],
    "of zeros": lambda whole: bytes(len(whole)),
}


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_library_is_built_again(
    damage: Callable[[bytes], bytes], shape: ModelShape, cache: Path, compiler: Callable[[str], Path]
) -> None:
    log = compiler(MAKES_IT)
    made = library(ISAS[0])
    whole = made.read_bytes()
    made.write_bytes(damage(whole))
    assert obstacle(shape, "bfloat16", 16) == ""
    assert (made.read_bytes(), log.read_text().count("run")) == (whole, 2)
    assert obstacle(shape, "bfloat16", 16) == ""
    assert log.read_text().count("run") == 2, "it is found again"


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("where", ["cache", "beside"])
def test_the_library_of_another_machine_is_built_again(
    where: str, shape: ModelShape, cache: Path, compiler: Callable[[str], Path]
) -> None:
    """It is whole, but cannot be loaded: machines share a home directory, or an image was made elsewhere."""
    compiler('echo other > "$to"')
    if where == "beside":
        build.main()
    else:
        library(ISAS[0])
    log = compiler(MAKES_IT)
    log.unlink()
    assert obstacle(shape, "bfloat16", 16) == ""
    assert [path.read_bytes()[:5] for path in cache.iterdir() if path.suffix == ".so"] == [b"code\n"]
    assert obstacle(shape, "bfloat16", 16) == ""
    assert log.read_text().count("run") == 1


def test_a_cache_that_cannot_be_written_is_an_obstacle(
    shape: ModelShape, cache: Path, compiler: Callable[[str], Path]
) -> None:
    compiler(MAKES_IT)
    name = library(ISAS[0]).name
    (cache / name).unlink()
    (cache / f"{name}.lock").unlink()
    (cache / f"{name}.lock").mkdir()
    assert "the cache cannot be written" in obstacle(shape, "bfloat16", 16)


def test_no_compiler_is_an_obstacle(shape: ModelShape, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    assert obstacle(shape, "bfloat16", 16).startswith("there is no C++ compiler: install g++")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert "the compiler did not run" in obstacle(shape, "bfloat16", 16)


@pytest.mark.parametrize("outer", [False, True])
def test_a_cache_that_others_can_write_is_an_obstacle(shape: ModelShape, cache: Path, *, outer: bool) -> None:
    """Who can write the outer one puts another folder in the place of the inner one."""
    cache.mkdir(parents=True, mode=0o700)
    (cache.parent if outer else cache).chmod(0o777)
    assert "can be written by others" in obstacle(shape, "bfloat16", 16)


def test_folders_that_are_made_are_of_this_user_alone(cache: Path, compiler: Callable[[str], Path]) -> None:
    compiler(MAKES_IT)
    before = os.umask(0)
    try:
        library(ISAS[0])
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (cache.parent, cache)] == [0o700] * 2


def test_a_relative_name_of_the_cache_means_nothing(
    cache: Path, compiler: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler(MAKES_IT)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library(ISAS[0]).parent == tmp_path / ".cache" / "tandem" / "cpu"


def test_no_place_for_a_cache_is_an_obstacle(
    shape: ModelShape, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "there is no cache folder" in obstacle(shape, "bfloat16", 16)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("fpu avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16", ["avx512bf16", "avx512", "avx2"]),
        ("fpu avx2 fma avx512f avx512bw avx512vl avx512dq", ["avx512", "avx2"]),
        ("fpu avx2 fma avx512f", ["avx2"]),
    ],
)
def test_the_fastest_build_that_the_cpu_can_run_comes_first(flags: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert [isa.name for isa in isas_of_this_machine(tmp_path / "cpuinfo")] == names


def test_an_unknown_cpu_is_an_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("flags : fpu avx\n")
    with pytest.raises(BuildError, match="the CPU has no AVX2"):
        isas_of_this_machine(tmp_path / "cpuinfo")
    with pytest.raises(BuildError, match="the CPU is unknown"):
        isas_of_this_machine(tmp_path / "nothing")
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(BuildError, match="on aarch64: it is written for Linux on x86-64"):
        isas_of_this_machine()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"architecture": "gpt2"}, "the architecture is 'gpt2'"),
        ({"head_dim": 80}, "head_dim is 80"),
        ({"heads": 27}, "27 heads share 3 keys"),
        ({"heads": 8}, "8 heads share 3 keys"),
        ({"hidden": 560}, "the widths are 560 and 1536"),
        ({"intermediate": 1000}, "the widths are 576 and 1000"),
    ],
)
def test_a_model_that_does_not_fit_is_named(changes: dict[str, object], why: str, shape: ModelShape) -> None:
    assert why in misfit(msgspec.structs.replace(shape, **changes), "bfloat16", 16)


def test_only_bfloat16_and_three_page_sizes_fit(shape: ModelShape) -> None:
    assert [page for page in (1, 8, 16, 32, 48, 64, 128) if not misfit(shape, "bfloat16", page)] == [16, 32, 64]
    assert misfit(shape, "float32", 16) == "the dtype is float32: it computes in bfloat16"


def test_asking_needs_no_torch() -> None:
    """Commands ask which engine there would be, and they are to start at once."""
    code = "import sys, tandem.engine.cpu.build; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.getcwd()})
