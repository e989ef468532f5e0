"""Files and folders that an operator names: whether they serve is known before anything else is done."""

from pathlib import Path

import pytest

from tandem.core.errors import ConfigError
from tandem.runtime.places import check_file, check_folder, check_target


def test_a_folder_is_made_for_its_owner_and_left_empty(tmp_path: Path):
    folder = tmp_path / "records" / "today"
    check_folder("--record-dir", str(folder))
    check_folder("--record-dir", str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_a_folder_that_was_not_named_is_not_looked_at():
    check_folder("--record-dir", "")


def test_a_folder_in_which_no_file_can_be_made_is_named(tmp_path: Path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for folder in (taken, taken / "below", Path("/proc")):
        with pytest.raises(ConfigError, match=f"--dump-dir is '{folder}'.*; give another"):
            check_folder("--dump-dir", str(folder))


def test_a_target_keeps_what_is_in_it(tmp_path: Path):
    target = tmp_path / "rows.json"
    target.write_text("[]")
    check_target("--json", str(target))
    assert target.read_text() == "[]"
    with pytest.raises(ConfigError, match="--json is "):
        check_target("--json", str(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="--cluster-secret-file is "):
        check_file("--cluster-secret-file", str(tmp_path / "none"))
