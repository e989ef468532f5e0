"""Options of all tests, and what Hypothesis may not do in any of them."""

import pytest
from hypothesis import HealthCheck, settings

# A deadline of an example, or of drawing one, asserts how fast this machine is at this moment.
settings.register_profile("tandem", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tandem")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the stories as they are now told; look at the diff")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))
