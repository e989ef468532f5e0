"""What `tandem doctor` is told."""

import pytest

from tandem.core.errors import ConfigError
from tandem.doctor.options import DoctorOptions, check_options


@pytest.mark.parametrize("flag", ["listen", "connect"])
def test_an_empty_place_is_refused_and_not_taken_for_none(flag: str):
    with pytest.raises(ConfigError, match=f"--{flag} is '': give host and port"):
        check_options(DoctorOptions(**{flag: ""}, secret_file="secret"))


def test_without_a_place_one_host_is_looked_at():
    check_options(DoctorOptions())


def test_two_places_are_for_two_hosts():
    with pytest.raises(ConfigError, match="give one of them on each"):
        check_options(DoctorOptions(listen="", connect="10.0.0.1:7000"))
