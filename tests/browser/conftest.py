"""A real Chromium and a dashboard for it. Without Chromium these tests are skipped, and the session says so at its end.

The browser lives as long as a test module: while Playwright's own loop runs, no other test can start one in its thread.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from monitored_system import MonitoredSystem, StandIn, make_system
from oncehouse.common.http_auth import make_http_auth
from oncehouse.web.app import Dashboard
from oncehouse.web.server import DashboardServer, listen

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOSTILE_HOST = "evil.example"
ABSENT = f"there is no Chromium on this machine (looked for {', '.join(NAMES)}); `make browser` installs it on Debian"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    place = find_chromium()
    if place is None:
        if os.environ.get("ONCEHOUSE_BROWSER") == "required":
            pytest.fail(ABSENT)
        pytest.skip(ABSENT)
    arguments = [f"--host-resolver-rules=MAP {HOSTILE_HOST} 127.0.0.1"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def system(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> MonitoredSystem:
    """Made only where there is a browser to look at it."""
    del chromium
    return make_system(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def monitor(system: MonitoredSystem) -> Iterator[StandIn]:
    with closing(StandIn(system.targets)) as opened:
        yield opened


@pytest.fixture(scope="module")
def serve(monitor: StandIn) -> Iterator[Callable[..., str]]:
    """`serve(token=…)` starts a dashboard and gives its address."""
    opened: list[DashboardServer] = []

    def start(*, token: str | None = None, looking: StandIn = monitor, **options: bool) -> str:
        auth = make_http_auth("127.0.0.1:0", token=token)
        opened.append(DashboardServer(Dashboard(looking, auth, refresh_seconds=0.5, **options), listen(auth)))
        return f"http://127.0.0.1:{opened[-1].port}"

    yield start
    for server in opened:
        server.close()


@pytest.fixture(scope="module")
def address(serve: Callable[..., str]) -> str:
    return serve()


class Trouble(list[str]):
    """What the browser's console complained about: errors, exceptions, and what the content policy refused."""


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """`open_page(width=390, color_scheme="dark")` gives a page of a visitor of its own; trouble is looked at last."""
    contexts: list[BrowserContext] = []
    trouble = Trouble()

    def start(*, width: int = 1240, height: int = 900, expect_trouble: bool = False, **options: str) -> Page:
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)  # a machine under load is slow, and not wrong
        if not expect_trouble:
            page.on("console", lambda said: trouble.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: trouble.append(str(error)))
        return page

    yield start
    for context in contexts:
        context.close()
    assert trouble == []
