"""The registry as a local cluster sees it."""

from pathlib import Path

import pytest

from tandem.local.registry import members_reader


def test_a_registry_that_does_not_answer_is_named_with_what_to_do(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    read = members_reader(f"unix://{tmp_path}/nobody.sock", "default", secret)

    with pytest.raises(ConnectionError, match=r"nobody\.sock does not answer: .*; start it or correct --registry-url"):
        read()
