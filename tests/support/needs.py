"""What a machine has to have for some of the tests."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skips the test, and says what this machine lacks. In CI, which has to have it, the test fails."""
    if os.environ.get("CI"):
        pytest.fail(f"CI skips none of these tests: {what}", pytrace=False)
    pytest.skip(what)
