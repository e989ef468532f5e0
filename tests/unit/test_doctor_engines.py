"""What the doctor says of engines and of what they are built with, without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.doctor.engines import try_compiler, try_engine, try_engines
from tandem.doctor.report import Level
from tandem.engine.cpu import build
from tandem.engine.cpu.build import ISAS, BuildError
from tandem.engine.load import resolve_dtype
from tandem.engine.model import bundled_model_path, read_shape

NAME = read_shape(str(bundled_model_path())).name


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a CPU that is fast, a compiler, and nothing that was built; returns the cache."""
    monkeypatch.setattr(build, "BESIDE", tmp_path / "beside")
    monkeypatch.setattr(build, "isas_of_this_machine", lambda: [ISAS[0]])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nfor to; do :; done\necho code > "$to"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path / "cache" / "tandem" / "cpu"


def test_the_compiler_is_named_and_where_it_keeps_what_it_makes(host: Path, tmp_path: Path):
    found = try_compiler()
    text = f"{tmp_path / 'c++'} for avx512bf16; builds are kept in {host}"
    assert (found.level, found.text) == (Level.OK, text)


def test_without_a_compiler_it_is_a_warning_unless_all_is_built(monkeypatch: pytest.MonkeyPatch):
    build.main()
    assert try_compiler().text == f"not needed: {build.beside(ISAS[0])} is there"
    monkeypatch.setattr(build, "BESIDE", Path("/nowhere"))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    found = try_compiler()
    assert (found.level, found.text.partition(":")[0]) == (Level.WARN, "there is no C++ compiler")


def test_a_cache_that_others_can_write_is_a_warning(host: Path):
    host.mkdir(parents=True)
    host.chmod(0o777)
    found = try_compiler()
    assert found.level is Level.WARN
    assert "can be written by others" in found.text


def test_another_machine_needs_no_compiler(monkeypatch: pytest.MonkeyPatch):
    def none() -> list[build.Isa]:
        raise BuildError("the CPU has no AVX2")

    monkeypatch.setattr(build, "isas_of_this_machine", none)
    assert [(found.level, found.text.partition(":")[0]) for found in try_engines("")] == [
        (Level.OK, "not needed"),
        (Level.WARN, f"--engine auto takes torch, {resolve_dtype('auto')} for {NAME}"),
    ]


def test_the_engine_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "Native", lambda path: path)
    found = try_engine("")
    assert found.level is Level.OK
    assert found.text == f"--engine auto takes cpu, bfloat16 for {NAME}: the fastest on this CPU"
    assert try_engine("fake:8").text == "--engine auto takes fake for fake:8: the model is fake"


def test_a_model_that_cannot_be_read_fails():
    found = try_engine("/nowhere/model.gguf")
    assert found.level is Level.FAIL
    assert "/nowhere/model.gguf" in found.text


def test_it_needs_no_torch():
    code = "import sys, tandem.doctor.engines as e; e.try_engine('fake:8'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.getcwd()})
