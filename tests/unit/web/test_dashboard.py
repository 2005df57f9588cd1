"""The dashboard without a browser: every page, every deed, and everybody who is not let in."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from html.parser import HTMLParser
from uuid import uuid4

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, event

from monitored_system import EPOCHS, HISTORY, ORDERS, PAYMENTS, StandIn, add_batches, make_system
from oncehouse.cli.app import run_command
from oncehouse.common.http_auth import make_http_auth
from oncehouse.common.redaction import remember
from oncehouse.etl.open import open_etl, read_offsets
from oncehouse.ledger.catalog.batches import find_batch
from oncehouse.ledger.catalog.requests import list_requests
from oncehouse.ledger.models import BatchStatus, RequestKind
from oncehouse.monitoring.unavailable import NoAnswer
from oncehouse.web.app import Dashboard
from oncehouse.web.formatting import draw_curve, format_short, make_visible
from oncehouse.web.live_updates import FragmentCache, write_event
from oncehouse.web.security import SESSION_COOKIE, SESSION_SECONDS, Sessions, safe_next
from oncehouse.web.server import DashboardServer, listen

TOKEN = "correct-horse-battery-staple"
PAGES = {
    "/": ["orders", "clicks", "1 parked", "ledger.max_backlog is 2GB"],
    "/pipelines/orders": ["Offsets by partition", "Key index by age", "under 30 days", "not_json", "10,500"],
    "/pipelines/orders/epochs": [f"{HISTORY + EPOCHS:,}"],
    f"/pipelines/orders/epochs/{HISTORY + 1}": ["What it settled", "Live rows", "/pipelines/orders/batches/"],
    "/pipelines/orders/batches": ["in clickhouse", "parked", "Older"],
    "/pipelines/orders/batches?status=PARKED": [PAYMENTS, "Code: 60"],
    "/pipelines/orders/letters": ["not_json", "bad_value", "Replay all"],
    "/pipelines/orders/letters?reason=bad_value": ["twelve"],
    "/pipelines/orders/verify": ["Verify now"],
    "/etl": ["Refunds", "failed 1×", "dwh.daily", "<svg", "17 rows came late"],  # noqa: RUF001
    "/outbox": ["MSG_SIZE_TOO_LARGE", "broker away", "key-0"],
    "/consumers": ["billing", "2,322 behind", "no sign of life", "stable"],
    "/sync": ["CustomerSync", "failed 4 times", "37%", "by CDC"],
    "/leases": ["warehouse-1 pid 4711", "no process", "ingest"],
}


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """Looked at, and changed only where a test says so, each in a place of its own."""
    return make_system(tmp_path_factory.mktemp("dashboard"))


@pytest.fixture(scope="module")
def monitor(system):
    with closing(StandIn(system.targets)) as opened:
        yield opened


class Visitor:
    """A client with cookies that talks to the application itself, without a socket."""

    def __init__(self, app) -> None:
        self.app = app
        self._cookies = httpx.Cookies()

    def get(self, path: str, **options) -> httpx.Response:
        return self._send("GET", path, **options)

    def post(self, path: str, **options) -> httpx.Response:
        return self._send("POST", path, **options)

    def ask(self, method: str, path: str, *, raises: bool = True, **options) -> httpx.Response:
        return self._send(method, path, raises=raises, **options)

    def _send(self, method: str, path: str, *, raises: bool = True, **options) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=raises)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", cookies=self._cookies
            ) as client:
                answer = await client.request(method, path, **options)
                self._cookies = client.cookies
                return answer

        return asyncio.run(send())


def visit(monitor, *, token=None, names=(), **options) -> Visitor:
    auth = make_http_auth("127.0.0.1:0" if token is None else "0.0.0.0:0", token=token, names=names)
    return Visitor(Dashboard(monitor, auth, **options).app)


@pytest.fixture
def browser(monitor) -> Visitor:
    return visit(monitor)


class Forms(HTMLParser):
    """The hidden fields and the address of a page's form."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.action = ""

    def handle_starttag(self, tag, attrs) -> None:
        found = dict(attrs)
        if tag == "form" and found.get("method") == "post" and found.get("action") != "/logout":
            self.action = found.get("action", "")
        if tag == "input" and found.get("type") == "hidden":
            self.fields[found["name"]] = found["value"]


def read_form(answer) -> Forms:
    assert answer.status_code == 200, answer.text
    forms = Forms()
    forms.feed(answer.text)
    return forms


def do(browser: Visitor, path: str):
    """Ask, confirm, and go where one is sent."""
    form = read_form(browser.get(path))
    done = browser.post(form.action, data=form.fields)
    assert done.status_code == 303, done.text
    return browser.get(done.headers["location"])


# Pages.


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_what_the_read_model_knows(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 200
    assert [text for text in PAGES[path] if text not in answer.text] == []
    check_policy(answer)


@pytest.mark.parametrize(
    "path", ["/pipelines/orders/letters/replay", "/nowhere", "/metrics", "/static/live.js"]
)
def test_whatever_is_answered_is_under_the_same_policy(browser, path):
    check_policy(browser.get(path))


HOSTILE = {
    "GET /login?next=//[": ("GET", "/login?next=//[", {}, 200),
    "GET /login?next=http://[": ("GET", "/login?next=http://[", {}, 200),
    "POST /login with 21 fields": (
        "POST",
        "/login",
        {"data": {"token": TOKEN, **{f"field{n}": "x" for n in range(20)}}},
        401,
    ),
    "POST /login with a broken origin": ("POST", "/login", {"headers": {"origin": "http://["}}, 403),
    "POST /logout without a session": ("POST", "/logout", {}, 401),
    "a broken cookie": ("GET", "/", {"headers": {"cookie": "a=b; \x7f;=;[]"}}, 303),
    "another host": ("GET", "/", {"headers": {"host": "["}}, 421),
    "a method that no page has": ("DELETE", "/login", {}, 405),
}


@pytest.mark.parametrize("asked", HOSTILE)
def test_whatever_strangers_send_is_answered_under_the_same_policy(monitor, asked):
    method, path, options, status = HOSTILE[asked]
    answer = visit(monitor, token=TOKEN).ask(method, path, **options)
    assert answer.status_code == status
    assert "Traceback" not in answer.text
    check_policy(answer)


def test_a_failure_of_ours_is_answered_under_the_same_policy_and_tells_nothing(monitor, monkeypatch):
    def fail(_name: str) -> None:
        raise RuntimeError("of /home/somebody")

    monkeypatch.setattr(monitor, "leases", fail)
    answer = visit(monitor).ask("GET", "/leases", raises=False)
    assert answer.status_code == 500
    assert "the log of the dashboard" in answer.text
    assert "somebody" not in answer.text
    check_policy(answer)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/leases", 200),
        ("/etl/Payments/pause", 200),
        ("/pipelines/orders/verify", 200),
        ("/etl/Nothing/pause", 404),
        ("/logout", 405),
    ],
)
def test_whoever_asks_for_the_head_alone_is_answered_as_who_asks_for_all(browser, system, path, status):
    answer = browser.ask("HEAD", path, headers={"accept": "text/event-stream"} if path == "/leases" else {})
    assert answer.status_code == status
    assert offset_of(system, "Payments").state != "paused"


def check_policy(answer) -> None:
    """No page holds a script or a style of its own, and the policy would refuse it."""
    assert re.findall(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=\"|javascript:", answer.text) == []
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store" or answer.request.url.path.startswith("/static/")


def test_a_batch_is_shown_with_its_life_its_attempts_and_its_query_ids(browser, system):
    answer = browser.get(f"/pipelines/orders/batches/{system.parked}")
    for text in ("Attempt 1: failed", "Parked", f"{system.parked}-1", "until it is retried", "Retry"):
        assert text in answer.text
    loaded = browser.get(f"/pipelines/orders/batches/{system.loaded}").text
    assert "Attempt 1: inserted" in loaded
    assert "Retry" not in loaded


def test_from_an_epoch_one_comes_to_its_batches_and_back(browser):
    epoch = f"/pipelines/orders/epochs/{HISTORY + 1}"
    assert f'href="{epoch}"' in browser.get(f"/pipelines/orders/epochs?before={HISTORY + 2}").text
    batch = re.search(r'href="(/pipelines/orders/batches/[^"]+)"', browser.get(epoch).text)[1]
    assert f'href="{epoch}"' in browser.get(batch).text


def test_what_strangers_wrote_is_shown_as_text(browser, system):
    letters = browser.get("/pipelines/orders/letters").text
    assert "&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt;" in letters
    assert "<script>document" not in letters
    assert "\\x1b[31m" in letters
    assert "&lt;i&gt;unexpected&lt;/i&gt;" in letters
    batch = browser.get(f"/pipelines/orders/batches/{system.parked}").text
    assert "&lt;b&gt;here&lt;/b&gt;" in batch
    assert "<b>here" not in batch
    assert "found &lt;2&gt;" in browser.get("/etl").text
    assert "&lt;big&gt;" in browser.get("/outbox").text


@settings(max_examples=25, deadline=None)
@given(st.text())
def test_whatever_is_asked_for_comes_back_as_text(browser_of_all, asked):
    answer = browser_of_all.get("/pipelines/orders/batches", params={"status": asked})
    assert answer.status_code in {200, 400}
    assert "<script>" not in answer.text.replace('<script src="/static/live.js" defer></script>', "")


@pytest.fixture(scope="module")
def browser_of_all(monitor) -> Visitor:
    return visit(monitor)


def test_no_secret_reaches_a_page(browser, monitor, monkeypatch):
    remember("sesame-open-1234")
    monkeypatch.setattr(
        monitor, "groups", lambda: NoAnswer(why="password sesame-open-1234 refused", failed=True)
    )
    text = browser.get("/consumers").text
    assert "sesame-open-1234" not in text
    assert "refused" in text


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/pipelines/nothing", 404, "Unknown pipeline"),
        ("/pipelines/orders/batches/nope", 404, "has no batch nope"),
        ("/pipelines/orders/batches?after=gone", 404, "has no batch gone"),
        ("/pipelines/orders/epochs/x", 404, "is not an epoch number"),
        ("/pipelines/orders/letters?after=gone:1", 404, "There is no place"),
        ("/pipelines/orders/letters/replay?reason=not_jsn", 404, "did you mean"),
        ("/pipelines/orders/tables/nope/replay", 404, "has no table"),
        ("/etl/Nothing/pause", 404, "no topic"),
        ("/outbox/7/retry", 404, "is not the id of a message"),
        ("/nowhere", 404, "Page not found"),
        ("/pipelines/orders/batches?status=x", 400, "is not a batch status"),
        ("/pipelines/orders/epochs?before=x", 400, "is not an epoch number"),
    ],
)
def test_what_is_not_there_and_what_cannot_be_asked_for_are_told_apart_and_with_what_to_do(
    browser, path, status, says
):
    answer = browser.get(path)
    assert answer.status_code == status
    assert says in answer.text


def test_a_ledger_that_cannot_be_read_costs_its_own_card_alone(browser, system, tmp_path):
    file = system.folder / "clicks" / "catalog.db"
    file.rename(tmp_path / "away.db")
    try:
        text = browser.get("/").text
    finally:
        (tmp_path / "away.db").rename(file)
    assert "has no ledger yet" in text
    assert "1 parked" in text


def test_pages_of_ten_thousand_batches_hold_fifty_each(of_each_size):
    _, browser = of_each_size
    first = browser.get("/pipelines/orders/batches")
    assert first.text.count("<tr>") == 51
    older = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert older is not None
    second = browser.get(older[1].replace("&amp;", "&"))
    assert second.text.count("<tr>") == 51
    assert not set(re.findall(r"batches/([0-9a-f-]{36})", first.text)) & set(
        re.findall(r"batches/([0-9a-f-]{36})", second.text)
    )
    assert "all 10," in browser.get("/pipelines/orders").text


@pytest.mark.parametrize("path", ["/", "/pipelines/orders", "/pipelines/orders/batches", "/metrics"])
def test_ten_thousand_batches_cost_no_more_statements_or_bytes_than_a_hundred(of_each_size, path):
    few, many = (count_work(browser, path) for browser in of_each_size)
    assert few[0] == many[0] > 0, "statements"
    assert abs(few[1] - many[1]) < 1000, "bytes: figures have more digits, and no more of them"
    assert few[2] == many[2], "rows of tables"


@pytest.fixture(scope="module")
def of_each_size(tmp_path_factory) -> list[Visitor]:
    """The same system with a hundred batches more, and with ten thousand."""
    browsers = []
    for number in (100, 10_000):
        system = make_system(tmp_path_factory.mktemp(f"batches-{number}"))
        with system.catalog() as catalog:
            add_batches(catalog, number)
        browsers.append(visit(StandIn(system.targets)))
    return browsers


def count_work(browser: Visitor, path: str) -> tuple[int, int, int]:
    """Statements that any database is asked, bytes of the page, and rows of its tables.

    The least of some looks: what is asked beside a looker, on a thread of its own, may be heard too.
    """
    browser.get(path)  # once, so that connections and what is looked at once are there
    return min(count_once(browser, path) for _ in range(6))


def count_once(browser: Visitor, path: str) -> tuple[int, int, int]:
    asked = []

    def note(_connection, _cursor, statement, *_more) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        answer = browser.get(path)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert answer.status_code == 200
    return len(asked), len(answer.content), answer.text.count("<tr>")


def test_metrics_are_told_here_too(browser):
    names = {family.name for family in text_string_to_metric_families(browser.get("/metrics").text)}
    assert {"oncehouse_batches", "oncehouse_outbox_parked", "oncehouse_etl_lag_seconds"} <= names


# Deeds, each with its effect as the command line would have it.


def requests_of(system) -> list[tuple[RequestKind, dict[str, object]]]:
    with system.catalog() as catalog:
        return [(request.kind, request.arguments) for request in list_requests(catalog)]


def test_a_parked_batch_is_tried_again(system, monitor):
    said = []
    browser = visit(monitor, say=said.append)
    asked = browser.get(f"/pipelines/orders/batches/{system.parked}/retry")
    assert "with the same deduplication" in asked.text
    with system.catalog() as catalog:
        assert find_batch(catalog, system.parked).status is BatchStatus.PARKED, "looking changes nothing"
    try:
        after = do(browser, f"/pipelines/orders/batches/{system.parked}/retry")
        assert "will be retried" in after.text
        with system.catalog() as catalog:
            assert find_batch(catalog, system.parked).status is BatchStatus.RETRY
        assert [line.partition(":")[0] for line in said] == ["127.0.0.1"]
        assert system.parked in said[0]
    finally:
        system.repark()


def test_a_batch_that_has_arrived_is_not_tried_again(browser, system):
    form = read_form(browser.get(f"/pipelines/orders/batches/{system.loaded}/retry"))
    answer = browser.post(form.action, data=form.fields)
    assert answer.status_code == 409
    assert "only PARKED and RETRY" in answer.text


def test_dead_letters_are_replayed_by_reason_or_all(browser, system):
    before = requests_of(system)
    told = do(browser, "/pipelines/orders/letters/replay?reason=bad_value")
    assert "is in the ledger" in told.text
    do(browser, "/pipelines/orders/letters/replay")
    assert requests_of(system)[len(before) :] == [
        (RequestKind.REPLAY_DEAD_LETTERS, {"reason": "bad_value"}),
        (RequestKind.REPLAY_DEAD_LETTERS, {}),
    ]


def test_a_table_is_filled_again(browser, system):
    do(browser, f"/pipelines/orders/tables/{ORDERS}/replay")
    assert (RequestKind.REFILL_TABLE, {"table": ORDERS}) in requests_of(system)


def test_a_request_of_the_dashboard_is_the_one_that_the_command_line_leaves(browser, system, capsys):
    do(browser, "/pipelines/orders/letters/replay?reason=not_json")
    mine = requests_of(system)[-1]
    assert (
        run_command(["dead-letters", "replay", str(system.targets.pipelines[0]), "--reason", "not_json"]) == 0
    )
    assert requests_of(system)[-1] == mine


def offset_of(system, topic):
    with open_etl(system.targets.etl) as etl:
        return read_offsets(etl).offsets[topic]


def test_a_topic_is_paused_and_goes_on(browser, system):
    assert "Orders is paused." in do(browser, "/etl/Orders/pause").text
    assert offset_of(system, "Orders").state == "paused"
    assert 'href="/etl/Orders/resume"' in browser.get("/etl").text
    assert "Orders is resumed." in do(browser, "/etl/Orders/resume").text
    assert offset_of(system, "Orders").state == ""


def test_a_topic_is_freed_from_its_holder_and_its_range_stays_open(browser, system):
    held = offset_of(system, "Daily")
    assert held.hostid == "etl-1:77"
    assert "Daily is unlocked." in do(browser, "/etl/Daily/unlock").text
    freed = offset_of(system, "Daily")
    assert (freed.hostid, freed.next, freed.last) == ("", held.next, held.last)


def test_a_parked_message_is_sent_again_with_what_waits_behind_it(system, monitor):
    browser = visit(monitor)
    (parked,) = monitor.outbox().parked_messages
    told = do(browser, f"/outbox/{parked.id}/retry").text
    assert "Released 1 message and 1 that waited behind it." in told
    assert monitor.outbox().parked == 0
    system.park_message(parked.id)
    assert browser.get(f"/outbox/{uuid4()}/retry").status_code == 200
    form = read_form(browser.get(f"/outbox/{uuid4()}/retry"))
    refused = browser.post(form.action, data=form.fields)
    assert (refused.status_code, "is not parked" in refused.text) == (409, True)


def test_what_failed_in_an_inbox_is_tried_again(tmp_path):
    system = make_system(tmp_path)
    with closing(StandIn(system.targets)) as monitor:
        browser = visit(monitor)
        assert 'href="/inboxes/orders/retry"' in browser.get("/consumers").text
        assert "retry 1 messages of orders" in do(browser, "/inboxes/orders/retry").text
        (orders,) = monitor.inboxes().inboxes
        assert (orders.parked, orders.waiting) == (0, 6)
        assert browser.get("/inboxes/nobodys/retry").status_code == 404


def test_what_was_done_is_told_once(browser):
    form = read_form(browser.get("/etl/Payments/resume"))
    place = browser.post(form.action, data=form.fields).headers["location"]
    assert "Payments is resumed." in browser.get(place).text
    assert "Payments is resumed." not in browser.get(place).text
    assert "Payments" not in place, "an address that a stranger could write tells nothing"


def test_a_verification_is_run_and_told(browser, system):
    form = read_form(browser.get("/pipelines/orders/verify"))
    assert browser.post(form.action, data={**form.fields, "ledger_only": "on"}).status_code == 303
    deadline = time.monotonic() + 30
    while "under way" in (text := browser.get("/pipelines/orders/verify").text):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "differences" in text, "its files are not there"
    assert "the ledger alone" in text


def test_only_one_verification_of_a_pipeline_runs_at_a_time(monitor, monkeypatch):
    browser, free = visit(monitor), threading.Event()
    monkeypatch.setattr(monitor, "verify", lambda *_, **__: free.wait(30) and None)
    form = read_form(browser.get("/pipelines/clicks/verify"))
    try:
        assert browser.post(form.action, data=form.fields).status_code == 303
        assert browser.post(form.action, data=form.fields).status_code == 409
    finally:
        free.set()


# Who is not let in.


@pytest.mark.parametrize("path", ["/", "/metrics", "/static/live.js", "/login", "/etl/Orders/pause"])
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:8088"]
)
def test_a_host_that_is_not_ours_is_refused(browser, path, host):
    answer = browser.get(path, headers={"host": host})
    assert answer.status_code == 421
    assert "oncehouse_" not in answer.text


def test_our_own_names_and_those_we_were_told_are_served(monitor):
    browser = visit(monitor, names=["dash.example"])
    for host in ("127.0.0.1:8088", "localhost", "[::1]:8088", "dash.example", "DASH.example:80"):
        assert browser.get("/leases", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {}),
        ({}, {"form_token": "wrong"}),
        ({}, {"form_token": ""}),
        ({"origin": "http://evil.example"}, None),
        ({"origin": "null"}, None),
        ({"origin": "http://127.0.0.1:9999"}, None),
        ({"sec-fetch-site": "cross-site"}, None),
        ({"sec-fetch-site": "same-site"}, None),
    ],
)
def test_a_form_of_another_site_changes_nothing(browser, system, headers, fields):
    form = read_form(browser.get("/etl/Payments/pause"))
    answer = browser.post(form.action, data=form.fields if fields is None else fields, headers=headers)
    assert answer.status_code == 403
    assert offset_of(system, "Payments").state != "paused"


def test_the_token_of_another_process_is_refused(monitor, system):
    form = read_form(visit(monitor).get("/etl/Payments/pause"))
    assert visit(monitor).post(form.action, data=form.fields).status_code == 403
    assert offset_of(system, "Payments").state != "paused"


def test_a_form_larger_than_any_of_ours_is_not_read(browser):
    form = read_form(browser.get("/etl/Payments/pause"))
    assert browser.post(form.action, data={**form.fields, "more": "x" * 20_000}).status_code == 403


def test_read_only_shows_everything_and_lets_nobody_do_anything(monitor, system):
    browser = visit(monitor, read_only=True)
    for path in PAGES:
        answer = browser.get(path)
        assert answer.status_code == 200
        assert re.findall(r"Pause…|Retry…|Replay…|Unlock…|Replay all", answer.text) == []
    for path in ("/etl/Payments/pause", f"/pipelines/orders/batches/{system.parked}/retry"):
        assert browser.get(path).status_code == 403
        assert browser.post(path, data=read_form(visit(monitor).get(path)).fields).status_code == 403
    assert offset_of(system, "Payments").state != "paused"


def test_with_a_token_nothing_is_shown_before_it_is_given(monitor):
    browser = visit(monitor, token=TOKEN)
    for path in PAGES:
        answer = browser.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=%2F")
    assert browser.get("/metrics").status_code == 401
    assert browser.post("/etl/Orders/pause").status_code == 401
    assert browser.get("/static/dashboard.css").status_code == 200


def test_the_token_opens_a_session_that_scripts_and_other_sites_cannot_use(monitor):
    browser = visit(monitor, token=TOKEN)
    assert browser.post("/login", data={"token": "wrong-horse-battery"}).status_code == 401
    answer = browser.post("/login?next=/leases", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/leases")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    shown = browser.get("/leases")
    assert shown.status_code == 200
    assert TOKEN not in shown.text
    token = re.search(r'name="form_token" value="(\w+)"', shown.text)
    assert token is not None
    browser.post("/logout", data={"form_token": token[1]})
    assert browser.get("/leases").status_code == 303, "the session has ended on the server"


@pytest.mark.parametrize(
    ("origin", "secure"),
    [("https://oncehouse.example", True), ("http://oncehouse.example", False), (None, False)],
)
def test_behind_a_proxy_with_tls_the_session_never_travels_without_it(monitor, origin, secure):
    browser = visit(monitor, token=TOKEN, names=["oncehouse.example"])
    headers = {"host": "oncehouse.example"} | ({} if origin is None else {"origin": origin})
    answer = browser.post("/login", data={"token": TOKEN}, headers=headers)
    assert answer.status_code == 303
    assert ("; secure" in answer.headers["set-cookie"].lower()) is secure


def test_only_the_login_itself_is_open(monitor):
    browser = visit(monitor, token=TOKEN)
    assert browser.get("/login").status_code == 200
    for path in ("/login/", "/loginx", "/login/../leases", "/staticx"):
        assert browser.get(path).status_code == 303
        assert browser.get(path).headers["location"].startswith("/login?next=")


def test_a_session_that_is_made_up_opens_nothing(monitor):
    browser = visit(monitor, token=TOKEN)
    for session in ("", "local", "x" * 43, "a; b=c"):
        answer = browser.get("/leases", headers={"cookie": f"{SESSION_COOKIE}={session}"})
        assert answer.status_code == 303


def test_a_form_belongs_to_one_session(monitor, system):
    first = visit(monitor, token=TOKEN)
    second = Visitor(first.app)
    for browser in (first, second):
        browser.post("/login", data={"token": TOKEN})
    form = read_form(first.get("/etl/Payments/pause"))
    assert second.post(form.action, data=form.fields).status_code == 403
    assert offset_of(system, "Payments").state != "paused"


def test_a_bearer_may_scrape(monitor):
    browser = visit(monitor, token=TOKEN)
    answer = browser.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert "oncehouse_batches" in answer.text
    assert browser.get("/metrics", headers={"authorization": "Bearer x"}).status_code == 401


def test_sessions_end_by_themselves():
    now = 0.0
    sessions = Sessions(monotonic=lambda: now)
    session = sessions.begin()
    assert sessions.knows(session)
    now = SESSION_SECONDS + 1.0
    assert not sessions.knows(session)
    assert not sessions.keeps(None)


@pytest.mark.parametrize(
    "asked",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "evil",
        "/x\r\nSet-Cookie: a=b",
        "",
        "/\t/evil",
        "//[",
        "http://[",
    ],
)
def test_nobody_is_sent_to_another_site_after_the_login(asked):
    assert safe_next(asked) == "/"


def test_one_is_sent_where_one_wanted_to_go():
    assert safe_next("/pipelines/orders/batches?status=PARKED") == "/pipelines/orders/batches?status=PARKED"


# Live pages.


@pytest.fixture
def serve(monitor):
    opened = []

    def start(**options) -> str:
        auth = make_http_auth("127.0.0.1:0", token=None)
        opened.append(DashboardServer(Dashboard(monitor, auth, refresh_seconds=0.1, **options), listen(auth)))
        return f"http://127.0.0.1:{opened[-1].port}"

    yield start
    for server in opened:
        server.close()


def test_a_page_comes_anew_when_something_has_changed_and_not_before(serve, monitor):
    events = {"accept": "text/event-stream"}
    with (
        httpx.Client(base_url=serve(), timeout=20) as client,
        client.stream("GET", "/pipelines/clicks", headers=events) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        first = next_event(lines)
        assert "89.9k" in first
        assert "<html" not in first, "only what changes"
        monitor.ends["clicks"] = {("clicks", 0): 5_100}
        try:
            while "5,000" not in (text := next_event(lines)):
                assert text != first
        finally:
            monitor.ends["clicks"] = {("clicks", 0): 90_000}


def next_event(lines) -> str:
    data = []
    for line in lines:
        if line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            return "\n".join(data)
    raise AssertionError("the stream has ended")


def test_a_stream_ends_with_the_server(monitor):
    auth = make_http_auth("127.0.0.1:0", token=None)
    server = DashboardServer(Dashboard(monitor, auth, refresh_seconds=0.05), listen(auth))
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as client,
        client.stream("GET", "/leases", headers={"accept": "text/event-stream"}) as answer,
    ):
        lines = answer.iter_lines()
        next_event(lines)
        closing = threading.Thread(target=server.close)
        closing.start()
        for _ in lines:
            pass
        closing.join(20)
    assert not server.is_alive()


@given(st.text())
def test_whatever_a_page_holds_it_is_one_event(text):
    event = write_event("page", text)
    assert event.endswith("\n\n")
    head, *lines = event[:-1].split("\n")[:-1] or [""]
    assert head == "event: page"
    assert all(line.startswith("data: ") for line in lines)
    assert "\n".join(line[6:] for line in lines) == text.replace("\r\n", "\n").replace("\r", "\n")


def test_what_several_look_at_is_read_once_a_moment():
    now, made = 0.0, []
    shared = FragmentCache(monotonic=lambda: now)

    def make() -> str:
        made.append(now)
        return f"made at {now}"

    assert [shared.get("/", make), shared.get("/", make)] == ["made at 0.0"] * 2
    shared.get("/leases", make)
    now = 2.0
    assert shared.get("/", make) == "made at 2.0"
    assert made == [0.0, 0.0, 2.0]


def test_of_those_who_come_at_once_one_makes_what_all_of_them_get():
    shared, made, begun, may_end = FragmentCache(), [], threading.Event(), threading.Event()

    def make() -> str:
        made.append(threading.get_ident())
        begun.set()
        may_end.wait(20)
        return "made"

    with ThreadPoolExecutor(8) as visitors:
        asked = [visitors.submit(shared.get, "/", make)]
        assert begun.wait(20)
        asked += [visitors.submit(shared.get, "/", make) for _ in range(6)]
        # Another page is not held up by it.
        assert visitors.submit(shared.get, "/leases", lambda: "other").result(20) == "other"
        may_end.set()
        assert [found.result(20) for found in asked] == ["made"] * 7
    assert len(made) == 1


def test_what_could_not_be_made_is_made_by_the_next_visitor():
    def fail() -> str:
        raise OSError("away")

    shared = FragmentCache()
    with pytest.raises(OSError, match="away"):
        shared.get("/", fail)
    assert shared.get("/", lambda: "made") == "made"


def test_shared_fragments_stay_few():
    shared = FragmentCache()
    for number in range(1000):
        assert shared.get(number, lambda: "made") == "made"
    assert len(shared._made) <= 256
    assert len(shared._makers) <= 256


# How things read.


@pytest.mark.parametrize(
    ("count", "spelt"),
    [
        (0, "0"),
        (7, "7"),
        (1.66, "1.7"),
        (9_999, "9,999"),
        (10_900, "10.9k"),
        (3_020_476, "3.02M"),
        (2e9, "2B"),
    ],
)
def test_large_figures_are_shortened(count, spelt):
    assert format_short(count) == spelt


@given(st.text())
def test_what_is_shown_can_be_seen(text):
    shown = make_visible(text)
    assert all(character.isprintable() or character == "\n" for character in shown)


@given(st.lists(st.integers(0, 10**9), max_size=80))
def test_a_curve_stays_in_its_box(points):
    line, area = draw_curve(points, width=240, height=48)
    places = [tuple(map(float, place.split(","))) for place in re.findall(r"[\d.]+,[\d.]+", line)]
    assert all(-0.1 <= x <= 240.1 and 0.9 <= y <= 47.1 for x, y in places)
    assert area.endswith("Z")
