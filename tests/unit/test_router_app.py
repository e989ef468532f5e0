"""The router's main, up to where it would serve: its options, and what it says when they cannot work."""

import socket

import pytest

from router.app import Parts, Router
from router.ports import Model
from router.service import Rules
from tandem.core.config import Frontend, RouterOptions
from tandem.core.errors import ConfigError


def router(**options) -> Router:
    named = {"cluster": "", "model": "m", "served_model_name": "", "registry_url": "", "port": 0, **options}
    return Router(RouterOptions(**named), Parts(Model("m", 1, None), list, lambda context: None))


def test_what_the_operator_sets_becomes_the_rules():
    assert router().rules == Rules()
    frontend = Frontend(
        policy="round_robin",
        max_concurrent_requests=7,
        queue_size=6,
        queue_timeout_secs=5.0,
        request_timeout_secs=3.0,
        retry_max_retries=2,
        cb_failure_threshold=8,
        cb_timeout_duration_secs=9.0,
        max_payload_size=2000,
    )
    assert router(frontend=frontend, timer_scale=5.0, drain_s=2.0).rules == Rules(
        policy="round_robin",
        max_concurrent_requests=7,
        queue_size=6,
        queue_timeout_s=5.0,
        request_timeout_s=3.0,
        retries_max=2,
        breaker_failures=8,
        breaker_s=9.0,
        max_payload_bytes=2000,
        timer_scale=5.0,
        drain_s=2.0,
    )


@pytest.mark.parametrize(
    ("option", "flags"), [("port", "--host or --port"), ("admin_port", "--admin-host or --admin-port")]
)
def test_a_port_that_is_taken_is_told_with_its_flags(option, flags):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: .*; choose another {flags}$"):
            router(**{option: port}).serve(lambda url, admin_url: None)
