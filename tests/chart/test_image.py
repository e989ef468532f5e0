"""The Dockerfile holds what the packages, the chart and the lock file say."""

import re
import tomllib

import yaml
from chart import CHART, ROOT

LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def lines(word: str) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in LINES if line.startswith(f"{word} ")]


def test_every_package_is_in_the_image():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {
        line.split()[0]
        for line in lines("COPY")
        if line.endswith(tuple(f"/opt/tandem/src/{name}" for name in packages))
    }
    assert copied == packages


def test_it_runs_as_the_user_that_the_chart_names():
    values = yaml.safe_load((CHART / "values.yaml").read_text())["security"]
    assert lines("USER") == [f"{values['runAsUser']}:{values['runAsGroup']}"]
    assert lines("ENTRYPOINT") == ['["tandem"]']
    assert lines("STOPSIGNAL") == ["SIGTERM"]


def test_it_has_the_torch_that_is_tested_and_everything_else_from_the_lock_file():
    torch = re.search(r"^TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert torch is not None
    assert f"TORCH={torch[1]}" in lines("ARG")
    assert any("--no-deps -r /opt/tandem/src/requirements.lock" in line for line in lines("RUN"))


def test_it_has_the_libraries_that_are_installed_for_tests():
    apt = re.search(r"^APT := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert apt is not None
    installs = [line for line in lines("RUN") if "apt-get install" in line]
    assert len(installs) == 2
    assert all(set(apt[1].split()) <= set(line.split()) for line in installs)
