"""The dashboard as a person has it: in Chromium, by mouse and keyboard, live, and under attack."""

from __future__ import annotations

import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from monitored_system import HISTORY, StandIn, add_batches, make_system
from oncehouse.common.http_auth import make_http_auth
from oncehouse.etl.open import open_etl, read_offsets
from oncehouse.ledger.catalog.batches import find_batch
from oncehouse.ledger.models import BatchStatus
from oncehouse.web.app import Dashboard
from oncehouse.web.server import DashboardServer, listen

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PATHS = [
    "/",
    "/pipelines/orders",
    "/pipelines/orders/epochs",
    f"/pipelines/orders/epochs/{HISTORY + 1}",
    "/pipelines/orders/batches",
    "/pipelines/orders/batches/{parked}",
    "/pipelines/orders/batches/{parked}/retry",
    "/pipelines/orders/letters",
    "/pipelines/orders/verify",
    "/etl",
    "/outbox",
    "/consumers",
    "/sync",
    "/leases",
]
LIVE = "#pulse[data-state=live]"
TOKEN = "correct-horse-battery-staple"
BATCHES = 10_000


@pytest.mark.parametrize(
    ("width", "scheme"), [(1240, "light"), (390, "dark")], ids=["wide and light", "a phone in the dark"]
)
def test_every_page_opens_without_an_error_and_fits_the_screen(open_page, address, system, width, scheme):
    page = open_page(width=width, color_scheme=scheme)
    for path in PATHS:
        answer = page.goto(address + path.format(parked=system.parked))
        assert answer.status == 200, path
        assert page.locator("h1").count() == 1, path
        if not path.endswith("/retry"):
            page.wait_for_selector(LIVE)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (
            f"{path} is wider than the screen"
        )


def test_figures_change_while_one_looks_and_focus_stays(open_page, address, monitor):
    page = open_page()
    page.goto(address + "/pipelines/clicks")
    page.wait_for_selector(LIVE)
    link = page.locator("td a", has_text="web.clicks")
    link.focus()
    assert page.locator(".station strong").first.inner_text() == "89.9k"
    monitor.ends["clicks"] = {("clicks", 0): 4_321}
    try:
        page.wait_for_selector(".station strong:text-is('4,221')")
    finally:
        monitor.ends["clicks"] = {("clicks", 0): 90_000}
    assert page.evaluate("document.activeElement.textContent") == "web.clicks"


def test_a_page_says_when_it_is_not_live_any_more(open_page, monitor):
    auth = make_http_auth("127.0.0.1:0", token=None)
    server = DashboardServer(Dashboard(monitor, auth, refresh_seconds=0.2), listen(auth))
    page = open_page(expect_trouble=True)
    page.goto(f"http://127.0.0.1:{server.port}/leases")
    page.wait_for_selector(LIVE)
    server.close()
    page.wait_for_selector("#pulse[data-state=away]")


def test_a_parked_batch_is_tried_again_by_keyboard_alone(open_page, address, system):
    page = open_page()
    page.goto(f"{address}/pipelines/orders/batches/{system.parked}")
    page.wait_for_selector(LIVE)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    tab_to(page, "Retry…")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("text=with the same deduplication")
    tab_to(page, "Retry")
    try:
        page.keyboard.press("Enter")
        page.wait_for_selector(".note")
        assert "will be retried" in page.locator(".note").inner_text()
        assert page.locator(".card .chip").first.inner_text() == "retry"
        with system.catalog() as catalog:
            assert find_batch(catalog, system.parked).status is BatchStatus.RETRY
    finally:
        system.repark()


def tab_to(page, text: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"{text!r} cannot be reached by keyboard")


def test_a_topic_is_paused_and_resumed_by_mouse(open_page, address, system):
    page = open_page()
    page.goto(address + "/etl")
    page.click("tr:has-text('Payments') >> text=Pause…")
    page.click("button:has-text('Pause')")
    page.wait_for_selector("text=Payments is paused.")
    assert state_of(system, "Payments") == "paused"
    page.click("tr:has-text('dwh.payments') >> text=Resume…")
    page.click("button:has-text('Resume')")
    page.wait_for_selector("text=Payments is resumed.")
    assert state_of(system, "Payments") == ""


def state_of(system, topic: str) -> str:
    with open_etl(system.targets.etl) as etl:
        return read_offsets(etl).offsets[topic].state


def test_what_strangers_wrote_runs_nowhere(open_page, address, system):
    page = open_page()
    for path in (
        "/pipelines/orders/letters",
        f"/pipelines/orders/batches/{system.parked}",
        "/etl",
        "/outbox",
    ):
        page.goto(address + path)
        page.wait_for_selector(LIVE)
        assert "oncehouse" in page.title()
        assert page.locator("img, b, i, iframe").count() == 0, path
    page.goto(address + "/pipelines/orders/letters")
    assert page.locator("pre", has_text="<script>document.title='owned'</script>").count() > 0


@pytest.fixture
def evil_site(address):
    """A page of another origin that submits a form to the dashboard, and tries to read it."""
    body = f"""<!doctype html><title>evil</title>
<form id=f method=post action="{address}/etl/Orders/pause"><input name=form_token value=guess></form>
<script>
fetch("{address}/leases").then(a => a.text()).then(() => document.title = "read", () => document.title = "not read");
</script>""".encode()

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_another_site_can_neither_act_nor_read(open_page, system, evil_site):
    page = open_page(expect_trouble=True)
    page.goto(evil_site)
    page.wait_for_function("document.title === 'not read'")
    with page.expect_navigation() as navigation:
        page.evaluate("document.getElementById('f').submit()")
    assert navigation.value.status == 403
    assert state_of(system, "Orders") != "paused"


def test_a_name_that_was_made_to_point_here_shows_nothing(open_page, address):
    page = open_page(expect_trouble=True)
    answer = page.goto(address.replace("127.0.0.1", "evil.example"))
    assert answer.status == 421
    assert "orders" not in page.content()


def test_the_policy_refuses_a_script_that_got_into_a_page(open_page, address):
    """Planted behind the templates' back: even then it does not run."""
    page = open_page(expect_trouble=True)

    def plant(route) -> None:
        if not route.request.is_navigation_request():
            route.continue_()  # the event stream
            return
        answer = route.fetch()
        planted = answer.text().replace("</main>", "<script>document.title='owned'</script></main>")
        route.fulfill(response=answer, body=planted)

    page.route(address + "/sync", plant)
    page.goto(address + "/sync")
    page.wait_for_selector(LIVE)
    assert "document.title='owned'" in page.content()
    assert page.title() != "owned"


def test_one_logs_in_once_and_scripts_see_no_session(open_page, serve):
    page = open_page(expect_trouble=True)
    address = serve(token=TOKEN)
    page.goto(address + "/pipelines/orders")
    page.fill("#token", "wrong-horse-battery")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=That is not the token.")
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('orders')")
    assert page.url == address + "/pipelines/orders"
    page.wait_for_selector(LIVE)
    assert page.evaluate("document.cookie") == ""
    page.click("text=Log out")
    page.wait_for_selector("h1:has-text('Log in')")
    page.goto(address + "/leases")
    assert "/login" in page.url


LOAD_SECONDS = 1.0


def load_best_of_three(page, address: str) -> float:
    taken = []
    for _ in range(3):
        page.goto(address)
        page.wait_for_selector(LIVE)
        taken.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
    return min(taken)


def test_a_page_of_ten_thousand_batches_loads_within_a_second(
    open_page, serve, tmp_path, capsys, record_property
):
    """Judged where nobody else keeps the cores busy; what does not hang on them is judged without a browser."""
    system = make_system(tmp_path)
    with system.catalog() as catalog:
        add_batches(catalog, BATCHES)
    page, address = open_page(), serve(looking=StandIn(system.targets))
    paths = ("/pipelines/orders/batches", "/pipelines/orders", "/")
    seconds = {path: load_best_of_three(page, address + path) for path in paths}
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    record_property("load_seconds", seconds)
    record_property("judged", load < cores)
    started = time.monotonic()
    assert page.request.get(address + "/metrics").ok
    scrape = time.monotonic() - started
    size = len(page.goto(address + "/pipelines/orders/batches").body())
    with capsys.disabled():
        told = ", ".join(f"{path} in {taken:.2f} s" for path, taken in seconds.items())
        print(f"\nwith {BATCHES:,} batches Chromium loaded {told}; a page of 50 has {size:,} bytes")
        print(f"and a scrape of all metrics took {scrape:.2f} s; load average {load:.1f}")
        if load >= cores:
            print(f"NOT JUDGED: others keep the {cores} cores busy; {LOAD_SECONDS} s hold on a quiet machine")
    if load < cores:
        assert max(seconds.values()) < LOAD_SECONDS, seconds
    assert page.locator("tbody tr").count() == 50
    page.click("text=Older")
    page.wait_for_selector("text=Newest")
    assert page.locator("tbody tr").count() == 50


def test_screenshots_for_the_docs_are_made(open_page, address, system, pytestconfig, tmp_path):
    """Written into docs/images with --write-screenshots; times and ids in them would change each time."""
    folder = IMAGES if pytestconfig.getoption("--write-screenshots") else tmp_path
    folder.mkdir(exist_ok=True)
    parked = f"/pipelines/orders/batches/{system.parked}"
    for name, path, width, height, scheme in (
        ("overview", "/", 1240, 680, "light"),
        ("facts", "/etl", 1240, 960, "light"),
        ("batch-dark", parked, 1240, 760, "dark"),
        ("phone", "/", 390, 844, "light"),
    ):
        page = open_page(width=width, height=height, color_scheme=scheme)
        page.goto(address + path)
        page.wait_for_selector(LIVE)
        page.screenshot(path=folder / f"dashboard-{name}.png", animations="disabled")
        assert (folder / f"dashboard-{name}.png").stat().st_size > 10_000
    assert {found.name for found in IMAGES.glob("dashboard-*.png")} >= {
        f"dashboard-{name}.png" for name in ("overview", "facts", "batch-dark", "phone")
    }
