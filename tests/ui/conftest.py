"""A real cluster with the fake engine, and a real browser that looks at its dashboard."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator

import pytest
from cluster import Cluster
from fake_model import FAKE
from needs import missing
from page import HOSTILE, KEY, LIVE
from playwright.sync_api import Browser, Page, sync_playwright
from traffic import Traffic
from waiting import DEADLINE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SLOW_S = 0.25
"""Each write takes so long, so that somebody can see it."""
WRITES = 5000

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest) -> str:
    """What the model is called: nothing nice, but on pictures."""
    return "fake:8" if request.config.getoption("--rewrite") else HOSTILE


@pytest.fixture(scope="session")
def cluster(model: str) -> Iterator[Cluster]:
    """Two groups of each role, two ranks each."""
    plan = {"at": {str(number): "delay" for number in range(1, WRITES)}, "seconds": SLOW_S}
    sizes = ("--prefill-groups", "2", "--decode-groups", "2", "--prefill-pp", "2", "--decode-pp", "2")
    with contextlib.ExitStack() as stack:
        # Not for as long as the cluster is there: that is the whole session.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TANDEM_TEST_FAULTS", "1")
            patch.setenv("TANDEM_TEST_FAULT_PLAN", json.dumps(plan))
            patch.setenv("TANDEM_ADMIN_API_KEY", KEY)
            running = stack.enter_context(Cluster(*FAKE, *sizes, "--served-model-name", model))
        yield running


@pytest.fixture
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    """Requests come one after the other for as long as the test runs."""
    with Traffic(cluster) as running:
        yield running
    cluster.at_rest()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. A machine without one runs none of these tests, but CI has to."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        missing("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture
def open_page(cluster: Cluster, browser: Browser) -> Iterator[Open]:
    """`open_page(width=390, scheme="dark")`: the dashboard in a tab that has the key, live.

    Whatever a page says in its console, throws or lets be executed fails the test, but for what `loud` allows.
    """
    contexts, said = [], []

    def opened(
        width: int = 1280,
        scheme: str = "light",
        *,
        url: str = "",
        path: str = "/dashboard",
        key: str = KEY,
        live: bool = True,
        loud: bool = False,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(DEADLINE_S * 1000)
        if key:
            context.add_init_script(f"sessionStorage.setItem('tandem-key', {json.dumps(key)})")
        page = context.new_page()
        if not loud:
            page.on("console", lambda told: said.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"a dialog: {dialog.message}"))
        page.goto((url or cluster.admin_url) + path)
        if live:
            page.wait_for_selector(LIVE)
        return page

    yield opened
    hacked = [page.evaluate("window.hacked") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert said == []
    assert not any(hacked), "text of others was executed"
