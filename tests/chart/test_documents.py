"""What the documents say of the chart is there."""

import re

import pytest
import yaml
from chart import CHART, MATRIX, NAMESPACE, RELEASE, ROOT, rendered, run_helm

from tandem import cli

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DOCUMENTS = (ROOT / "docs" / "operations.md", CHART / "README.md")


def known(path: str) -> bool:
    node = VALUES
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return bool(node == {})  # flags, volumes and the like are the operator's
        node = node[name]
    return True


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_value_that_is_named_exists(path):
    named = [each for each in re.findall(r"`([a-z]\w*(?:\.\w+)+)", path.read_text()) if each.split(".")[0] in VALUES]
    assert len(named) > 10
    assert not [each for each in named if not known(each)]


def test_every_flag_in_the_operators_guide_is_one_of_the_command_line():
    schema = (CHART / "values.schema.json").read_text()
    text = DOCUMENTS[0].read_text()
    for flags in re.findall(r"(?<!nginx: )`((?:[a-z]+-)+[a-z]+): ", text):
        assert f'"{flags}"' in schema, flags


def test_every_values_file_is_named_in_both():
    for path in DOCUMENTS:
        assert {file.name for file in CHART.glob("values-*.yaml")} <= set(
            re.findall(r"values-\w+\.yaml", path.read_text())
        )


@pytest.mark.parametrize("name", MATRIX)
def test_the_notes_of_an_installation_name_what_is_there(name):
    values, files = MATRIX[name]
    words = [word for file in files for word in ("-f", str(CHART / file))]
    done = run_helm("install", RELEASE, str(CHART), "--dry-run=client", "--namespace", NAMESPACE, *words, values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    objects = rendered(name)
    for kind, named in re.findall(r"(deployment|service)/([a-z0-9-]+)", notes):
        assert [found for found in objects if (found["kind"].lower(), found["metadata"]["name"]) == (kind, named)]
    [secret] = re.findall(r"get secret ([a-z0-9-]+)", notes)
    held = {found["metadata"]["name"] for found in objects if found["kind"] == "Secret"}
    assert secret in held or secret == values["secrets"]["existingSecret"]
    assert ("WARNING" in notes) is (name == "open")
    for command in re.findall(r"^  tandem (\w+)", notes, re.MULTILINE):
        assert cli.run([command, "--help"]) == 0


def test_the_worked_example_follows_from_its_formulas():
    text = (ROOT / "docs" / "operations.md").read_text()
    kv = 32 * 2 * 8 * 128 * 2
    asked, prompt, answer, tpot, load = 20, 2000, 300, 0.03, 0.7
    prefills, decodes = asked * prompt / (load * 16_000), asked * answer / (load * 3_000)
    at_once = asked * answer * tpot
    resident = at_once * (prompt + answer / 2)
    for figure in (
        f"b = {kv:,} bytes",
        f"{prefills:.1f} -> 4 groups",
        f"{decodes:.1f} -> 3 groups",
        f"{asked * prompt * kv / 1e9:.1f} GB/s ({asked * prompt * kv * 8 / 1e9:.0f} Gbit/s) in all",
        f"{asked * prompt * kv / 4 / 1e9:.1f} GB/s from each prefill group",
        f"{16_000 * kv / 1e9:.1f} GB/s at most",
        f"{16_000 * kv / 2 / 1e9:.2f} GB/s ({16_000 * kv / 2 * 8 / 1e9:.1f} Gbit/s) for each of them",
        f"takes in {asked * prompt * kv / 3 / 1e9:.2f} GB/s",
        f"{at_once:.0f} requests of 2,150 tokens = {resident:,.0f} tokens",
        f"{resident / 3:,.0f} for each decode group = {-(-resident // 3 // 16):,.0f} pages",
        f"{10_000 * 16 * kv / 1e9:.0f} GB for each group",
    ):
        assert figure in text, figure
