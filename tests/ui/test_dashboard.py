"""The dashboard in a real browser, while a real cluster works, breaks and mends."""

import contextlib
import os
import re
import signal
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from cluster import Cluster
from page import HOSTILE, KEY, LIVE
from playwright.sync_api import Locator, Page, expect
from proxy import Proxy
from traffic import Traffic
from trouble import PAIRS, trouble
from waiting import DEADLINE_S, eventually

expect.set_options(timeout=DEADLINE_S * 1000)

PANELS = (
    "problems", "figures", "charts", "topology", "transfers", "edges", "first", "queues", "held", "pages", "phases",
    "slow", "losses",
)  # fmt: skip
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
RANKS = ["d0.0", "d0.1", "d1.0", "d1.1", "p0.0", "p0.1", "p1.0", "p1.1"]


DOCS = Path(__file__).parents[2] / "docs"
"""Where `make screenshots` puts what these tests see..."""
KEPT = (("light", 1280), ("dark", 390))
CHARTED_MS = 40_000
"""... in these schemes and widths, when charts have been drawn for so long."""


def panel(page: Page, name: str) -> Locator:
    return page.locator(f"#{name}")


def all_is_well(page: Page) -> None:
    """Every group can be used; what was lost before is still told."""
    expect(panel(page, "topology").locator("h3 .badge.good")).to_have_count(4)
    expect(panel(page, "topology").locator("td .badge.good")).to_have_count(8)


def test_the_keyboard_leads_to_a_request_and_back(open_page, cluster: Cluster):
    with Traffic(cluster) as traffic:
        page = open_page()
        page.wait_for_selector("#slow button.link")
        eventually(lambda: traffic.ids, "an answer")
    cluster.at_rest()
    expect(panel(page, "slow").locator(f"[data-request='{traffic.ids[0]}.1']")).to_be_visible()
    focused = "document.activeElement.closest('#slow') ? document.activeElement.dataset.request : ''"
    for _ in range(100):
        page.keyboard.press("Tab")
        if (request := page.evaluate(focused)) == f"{traffic.ids[0]}.1":
            break
    assert request == f"{traffic.ids[0]}.1", "the request cannot be reached"
    page.keyboard.press("Enter")
    expect(page.locator("#request")).to_be_visible()
    rows = page.locator("#request .waterfall li")
    for label in ("alloc", "d0.1 vote", "bootstrap", "first token", "transferred", "decode"):
        label = label.replace("d0", page.locator("#request .attempt .quiet").first.inner_text().split()[2])
        expect(rows.filter(has_text=re.compile(f"^{label}")).first).to_be_visible()
    expect(rows.filter(has_text=re.compile(r"^p\d\.0 tokens 0-")).first.locator(".bar-run").first).to_be_attached()
    for layer in range(8):
        wire = rows.filter(has_text=re.compile(rf"^p\d\.\d layer {layer} > ")).locator(".bar-wire")
        expect(wire.first).to_be_attached()
    page.keyboard.press("Escape")
    expect(page.locator("#request")).to_be_hidden()
    assert page.evaluate(focused) == request, "the focus is where it was"


def test_transfers_are_seen_layer_by_layer_while_they_run(open_page, traffic: Traffic):
    page = open_page()
    partly = page.locator("#transfers tr:has(.badge.good) .cells:has(i.whole):has(i:not(.whole))")
    expect(partly.first).to_be_visible()
    expect(panel(page, "figures")).to_contain_text("B/s")
    expect(panel(page, "edges").locator("td .rate", has_text=re.compile(r"[1-9].* k?B/s")).first).to_be_visible()
    for phase in ("alloc", "bootstrap", "compute", "exposed", "queue", "wire", "commit", "decode"):
        expect(panel(page, "phases").locator("tbody tr", has_text=re.compile(f"^{phase} ")).first).to_be_visible()
    expect(panel(page, "first")).to_contain_text("p95")
    expect(panel(page, "pages").locator("li[data-key=d0]")).to_contain_text("cached")
    expect(page.locator("#charts canvas")).to_have_count(3)
    expect(page.locator("#charts .canvas").first).to_have_attribute("aria-label", re.compile("KV moved.*B/s"))


def test_every_rank_is_shown_with_its_tick_and_its_epoch(open_page, cluster: Cluster):
    page = open_page()
    all_is_well(page)
    for name in RANKS:
        row = panel(page, "topology").locator(f"tr[data-key='{name}']")
        epoch = cluster.state(name)["epoch"]
        expect(row).to_contain_text("ready")
        expect(row.locator("abbr")).to_have_attribute("title", f"epoch {epoch}")
        expect(row).to_contain_text(cluster.http[name])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_all_panels_are_readable_on_wide_and_narrow_screens(
    open_page, traffic: Traffic, width: int, scheme: str, rewrite: bool
):
    page = open_page(width, scheme)
    page.wait_for_selector("#slow button.link")
    eventually(lambda: traffic.ids, "an answer")
    for name in PANELS:
        expect(panel(page, name)).to_be_visible()
        assert panel(page, name).inner_text().strip(), name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    kept = rewrite and (scheme, width) in KEPT
    if kept:
        page.wait_for_timeout(CHARTED_MS)
        page.screenshot(path=DOCS / f"dashboard-{scheme}-{width}.png")
    page.fill("#find-id", traffic.ids[-1])
    page.keyboard.press("Enter")
    page.wait_for_selector(".waterfall li")
    assert page.evaluate("document.querySelector('#request').scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    if kept:
        page.screenshot(path=DOCS / f"dashboard-request-{scheme}-{width}.png")


@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_when_the_stream_ends_the_page_says_how_old_it_is_and_comes_back(open_page, cluster: Cluster, how: str):
    behind = urlsplit(cluster.admin_url)
    with Proxy(behind.hostname, behind.port) as proxy:
        page = open_page(url=f"http://127.0.0.1:{proxy.port}", loud=True)
        expect(page.locator("#stale")).to_be_hidden()
        getattr(proxy, how)()
        expect(page.locator("#freshness-state")).to_have_text("Stale")
        expect(page.locator("#stale-text")).to_contain_text(re.compile(r"What you see is \d+ seconds? old"))
        expect(page.locator("#h-problems")).to_have_text(re.compile(r"\d+ seconds? ago"))
        expect(page.locator("#topology .group")).to_have_count(4)
        if how == "cut":
            page.click("#retry")
            expect(page.locator("#stale-text")).to_contain_text("Trying again")
        proxy.mend()
        expect(page.locator("#freshness-state")).to_have_text("Live")
        expect(page.locator("#stale")).to_be_hidden()


def test_a_page_without_a_router_says_so_and_comes_by_itself(open_page, cluster: Cluster):
    behind = urlsplit(cluster.admin_url)
    with Proxy(behind.hostname, behind.port) as proxy:
        page = open_page(url=f"http://127.0.0.1:{proxy.port}", loud=True)
        page.route("**/dashboard/events", lambda route: route.abort())
        page.reload()
        expect(page.locator("#freshness-state")).to_have_text("No connection")
        expect(page.locator("#stale-text")).to_contain_text("The router's figures cannot be read")
        page.unroute("**/dashboard/events")
        page.wait_for_selector(LIVE)


def test_the_page_asks_for_the_key_and_keeps_it_for_this_tab_only(open_page):
    page = open_page(key="", live=False, loud=True)
    form = page.locator("#sign-in")
    expect(form).to_be_visible()
    expect(page.locator("#main")).to_be_hidden()
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type("another")
    page.keyboard.press("Enter")
    expect(form).to_contain_text("This key is not known")
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector(LIVE)
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
    page.reload()
    page.wait_for_selector(LIVE)
    page.click("#sign-out")
    expect(form).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_names_and_ids_of_others_are_text(open_page, model: str):
    """The page's fixture looks at what was executed."""
    page = open_page(loud=True)
    expect(page.locator("#about")).to_contain_text(model)
    page.fill("#find-id", HOSTILE)
    page.keyboard.press("Enter")
    expect(page.locator("#request-title")).to_have_text(f"Request {HOSTILE}")
    expect(page.locator("#request-body .error")).to_contain_text("No timeline")
    page.keyboard.press("Escape")
    again = open_page(path=f"/dashboard#request={quote(HOSTILE)}", loud=True)
    expect(again.locator("#request-body .error")).to_contain_text("No timeline")
    assert again.locator("img").count() == 0


def test_a_row_that_moves_keeps_the_focus(open_page):
    page = open_page()
    kept, order = page.evaluate("""async () => {
        const { h, show } = await import("./dashboard/dom.js");
        const place = document.body.appendChild(document.createElement("div"));
        const rows = (...names) => names.map((name) => h("p", { "data-key": name }, h("button", { id: name }, name)));
        show(place, rows("one", "two", "three"));
        document.getElementById("three").focus();
        const known = document.activeElement;
        show(place, rows("three", "one"));
        return [document.activeElement === known, place.textContent];
    }""")
    assert (kept, order) == (True, "threeone")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_large_cluster_in_which_everything_is_wrong_is_readable(open_page, width: int, scheme: str):
    page = open_page(width, scheme, live=False, loud=True)
    told = b"event: snapshot\ndata: " + msgspec.json.encode(trouble(HOSTILE)) + b"\n\n"
    page.route("**/dashboard/events", lambda route: route.fulfill(body=told, content_type="text/event-stream"))
    page.reload()
    expect(page.locator("#topology .group")).to_have_count(2 * PAIRS)
    expect(panel(page, "problems").locator("li.bad").first).to_contain_text("router is not ready")
    expect(panel(page, "problems").locator(".more")).to_contain_text("more: see the panels below")
    expect(panel(page, "edges").locator("td .badge.bad")).to_have_count(PAIRS * PAIRS)
    expect(panel(page, "held").locator(".badge.bad")).to_have_text("✕ stranded")
    expect(panel(page, "losses")).to_contain_text(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    assert page.locator("img").count() == 0


def test_a_rank_that_is_killed_is_named_with_the_cause(open_page, cluster: Cluster, rewrite: bool):
    page = open_page()
    all_is_well(page)
    os.kill(cluster.pids["p1.1"], signal.SIGKILL)
    killed = "rank 1 was killed by SIGKILL"
    expect(panel(page, "problems")).to_contain_text(re.compile(f"p1 (is|was) lost .*{killed}"))
    expect(panel(page, "losses").locator("li", has_text=killed)).to_contain_text("p1")
    expect(panel(page, "topology").locator("[data-group=p1]")).to_contain_text(f"last epoch ended: p1 {killed}")
    if rewrite:
        page.screenshot(path=DOCS / "dashboard-lost.png")
    cluster.serves_again()
    all_is_well(page)


def test_a_rank_that_answers_nobody_is_named_while_it_lasts(open_page, cluster: Cluster):
    page = open_page()
    all_is_well(page)
    os.kill(cluster.pids["d1.1"], signal.SIGSTOP)
    row = panel(page, "topology").locator("tr[data-key='d1.1'] .badge.bad")
    try:
        expect(row).to_have_text("✕ not ready")
        expect(panel(page, "problems")).to_contain_text(re.compile(r"d1\.1 is not ready .*(answer|asked|registered)"))
    finally:
        with contextlib.suppress(ProcessLookupError):  # its supervisor may have lost patience
            os.kill(cluster.pids["d1.1"], signal.SIGKILL)
    cluster.serves_again()
    all_is_well(page)
