"""What an operator gives a router is tried before a cluster is started around it."""

from pathlib import Path

import pytest

from router.given import check_frontend
from tandem.core.config import Frontend
from tandem.core.errors import ConfigError


def test_what_needs_nothing_passes():
    check_frontend(Frontend(), "")
    check_frontend(Frontend(), "a-key-of-some-length")


@pytest.mark.parametrize("content", ["", "no json", '{"name": "a"}', '[{"name": "a", "key_sha256": "short"}]'])
def test_a_keys_file_of_no_use_is_named(tmp_path: Path, content: str):
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"--api-keys-file is '{file}'"):
        check_frontend(Frontend(api_keys_file=str(file)), "")


@pytest.mark.parametrize("one", ["tls_cert_path", "tls_key_path"])
def test_half_of_a_certificate_is_refused(tmp_path: Path, one: str):
    with pytest.raises(ConfigError, match="give both, or none"):
        check_frontend(Frontend(**{one: str(tmp_path / "file")}), "")


def test_a_file_that_is_not_there_is_named_by_its_flag(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--tls-cert-path is .*cannot be read"):
        check_frontend(Frontend(tls_cert_path=str(tmp_path / "none"), tls_key_path=str(tmp_path / "none")), "")
