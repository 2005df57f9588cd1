"""The dashboard's application: the route of each page and action, and the response to each request.

A page answers with HTML, or with an event stream of its live part. An action shows a confirmation page on GET and runs
on POST with the form's token; in read-only mode both are refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from oncehouse.errors import ConfigurationError, OncehouseError, UpgradeNeededError
from oncehouse.metrics.collect import collect
from oncehouse.metrics.exposition import make_registry, write_text
from oncehouse.web.actions import Action, Actions
from oncehouse.web.flash_messages import FlashMessages
from oncehouse.web.live_updates import MOST_STREAMS, REFRESH_SECONDS, FragmentCache, stream_changes
from oncehouse.web.page_templates import STATIC, Page, make_environment, render, render_live
from oncehouse.web.security import SAFE_METHODS, SESSION_COOKIE, SESSION_SECONDS, Guard, Sessions, safe_next
from oncehouse.web.verification_jobs import Verifications
from oncehouse.web.views import InvalidQueryError, Pages

if TYPE_CHECKING:
    from oncehouse.common.http_auth import HttpAuth
    from oncehouse.monitoring.monitor import Monitor

RequestParams = Mapping[str, str]
_EVENTS = "text/event-stream"
_MOST_FORM_BYTES = 8192
_MOST_FIELDS = 20
_STALE_FORM = "The form has expired; nothing was changed. Open it again."
_READ_ONLY = "The dashboard was started with --read-only; actions are disabled."


class Dashboard:
    def __init__(
        self,
        monitor: Monitor,
        auth: HttpAuth,
        *,
        read_only: bool = False,
        say: Callable[[str], None] = lambda _text: None,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """`say` receives a line for each action, with the address of the client."""
        self._monitor = monitor
        self._auth = auth
        self._read_only = read_only
        self._say = say
        self._refresh_seconds = refresh_seconds
        self._sessions = Sessions()
        self._flash_messages = FlashMessages()
        self._fragments = FragmentCache()
        self._streams = 0
        self._environment = make_environment()
        self._verifications = Verifications(monitor)
        self._registry = make_registry(lambda: collect(monitor))
        self.stopping = False
        """Set: event streams end."""
        inside = Starlette(
            routes=self._routes(),
            exception_handlers={
                404: self._not_found,
                OncehouseError: self._show_error,
                Exception: _show_failure,
            },
        )
        self.app = Guard(inside, auth=auth, sessions=self._sessions)

    def _routes(self) -> list[Route | Mount]:
        pages, actions = Pages(self._monitor, self._verifications), Actions(self._monitor)
        activity = "/pipelines/{name}"
        shown = {
            "/": pages.overview,
            activity: pages.pipeline,
            f"{activity}/epochs": pages.epochs,
            f"{activity}/epochs/{{epoch}}": pages.epoch,
            f"{activity}/batches": pages.batches,
            f"{activity}/batches/{{batch}}": pages.batch,
            f"{activity}/letters": pages.dead_letters,
            "/etl": pages.etl,
            "/outbox": pages.outbox,
            "/consumers": pages.consumers,
            "/sync": pages.syncs,
            "/leases": pages.leases,
        }
        done = {
            f"{activity}/batches/{{batch}}/retry": actions.retry_batch,
            f"{activity}/letters/replay": actions.replay_dead_letters,
            f"{activity}/tables/{{table}}/replay": actions.refill_table,
            "/etl/{topic}/pause": actions.pause_topic,
            "/etl/{topic}/resume": actions.resume_topic,
            "/etl/{topic}/unlock": actions.unlock_topic,
            "/outbox/{message}/retry": actions.retry_message,
            "/inboxes/{inbox}/retry": actions.retry_inbox,
        }
        return [
            *(Route(path, self._show(build), methods=["GET"]) for path, build in shown.items()),
            *(
                Route(path, self._confirm_or_run(find), methods=["GET", "POST"])
                for path, find in done.items()
            ),
            Route(f"{activity}/verify", self._show_or_verify(pages.verify), methods=["GET", "POST"]),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/metrics", self._serve_metrics, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    # Pages.

    def _show(self, build: Callable[[RequestParams], Page]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if request.method == "GET" and _EVENTS in request.headers.get("accept", ""):
                return self._open_stream(request, build)
            return await self._answer(request, lambda: build(_request_params(request)))

        return handle

    async def _answer(self, request: Request, build: Callable[[], Page]) -> Response:
        page = await run_in_threadpool(self._build, build)
        text = render(
            self._environment,
            page,
            self._shared_context(request, flash_message=self._flash_messages.take(request)),
        )
        return HTMLResponse(text, status_code=page.status, headers={"vary": "accept, cookie"})

    def _build(self, build: Callable[[], Page]) -> Page:
        try:
            return build()
        except OncehouseError as error:
            context = {"why": str(error)}
            return Page(template="trouble.html", title="Trouble", context=context, status=_find_status(error))

    def _shared_context(self, request: Request, flash_message: str | None = None) -> dict[str, Any]:
        """The context that all pages share."""
        session = request.scope.get("oncehouse.session")
        targets = self._monitor.targets
        return {
            "here": request.url.path,
            "may_act": not self._read_only,
            "read_only": self._read_only,
            "form_token": self._sessions.form_token(session or ""),
            "flash_message": flash_message,
            "logged_in": self._auth.token is not None and session is not None,
            "pipelines": list(self._monitor.pipelines),
            "monitors": {
                "etl": targets.etl is not None,
                "outbox": targets.messaging is not None,
                "consumers": targets.messaging is not None or bool(targets.health_files),
                "sync": bool(targets.modules),
            },
        }

    # Event streams.

    def _open_stream(self, request: Request, build: Callable[[RequestParams], Page]) -> Response:
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("too many live pages are open; close some\n", status_code=503)
        return StreamingResponse(
            self._stream(request, build), media_type=_EVENTS, headers={"x-accel-buffering": "no"}
        )

    async def _stream(self, request: Request, build: Callable[[RequestParams], Page]) -> AsyncIterator[str]:
        shared = self._shared_context(request)
        key = (str(request.url), shared["form_token"])

        def make() -> str:
            page = self._build(lambda: build(_request_params(request)))
            return render_live(self._environment, page, shared)

        async def make_shared() -> str:
            return await run_in_threadpool(self._fragments.get, key, make)

        async def is_over() -> bool:
            session = request.scope["oncehouse.session"]
            ended = self._auth.token is not None and not self._sessions.keeps(session)
            return self.stopping or ended or await request.is_disconnected()

        self._streams += 1
        try:
            async for event in stream_changes(
                make_shared, is_over=is_over, refresh_seconds=self._refresh_seconds
            ):
                yield event
        finally:
            self._streams -= 1

    # Actions.

    def _confirm_or_run(self, find: Callable[[RequestParams], Action]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if self._read_only:
                return await self._refuse(request, 403, _READ_ONLY)
            params = _request_params(request)
            if request.method in SAFE_METHODS:
                return await self._answer(request, lambda: _confirm(find(params), request))
            if not await self._brings_token(request):
                return await self._refuse(request, 403, _STALE_FORM)
            action = await run_in_threadpool(find, params)
            message = await run_in_threadpool(action.do)
            self._say(f"{_client_address(request)}: {action.button}: {message}")
            return RedirectResponse(self._flash_messages.leave(message, action.back), status_code=303)

        return handle

    def _show_or_verify(self, build: Callable[[RequestParams], Page]) -> Callable[[Request], Any]:
        show = self._show(build)

        async def handle(request: Request) -> Response:
            if request.method in SAFE_METHODS:
                answer: Response = await show(request)
                return answer
            form = await _read_form(request)
            if not self._accepts(request, form):
                return await self._refuse(request, 403, _STALE_FORM)
            name = request.path_params["name"]
            await run_in_threadpool(
                self._verifications.start, name, files="files" in form, ledger_only="ledger_only" in form
            )
            return RedirectResponse(request.url.path, status_code=303)

        return handle

    async def _brings_token(self, request: Request) -> bool:
        return self._accepts(request, await _read_form(request))

    def _accepts(self, request: Request, form: Mapping[str, str]) -> bool:
        session = request.scope.get("oncehouse.session") or ""
        return self._sessions.accepts(session, form.get("form_token", ""))

    async def _refuse(self, request: Request, status: int, why: str) -> Response:
        page = Page(template="trouble.html", title="Refused", context={"why": why}, status=status)
        return await self._answer(request, lambda: page)

    # Login.

    async def _log_in(self, request: Request) -> Response:
        goes_to = safe_next(request.query_params.get("next", "/"))
        if self._auth.token is None:
            return RedirectResponse(goes_to, status_code=303)
        failed = False
        if request.method == "POST":
            form = await _read_form(request)
            if self._auth.authorizes(form.get("token", "")):
                answer = RedirectResponse(goes_to, status_code=303)
                answer.set_cookie(
                    SESSION_COOKIE,
                    self._sessions.begin(),
                    max_age=SESSION_SECONDS,
                    httponly=True,
                    samesite="strict",
                    secure=_came_by_tls(request),
                )
                return answer
            failed = True
        page = Page(
            template="login.html", title="Log in", context={"failed": failed}, status=401 if failed else 200
        )
        return await self._answer(request, lambda: page)

    async def _log_out(self, request: Request) -> Response:
        if await self._brings_token(request):
            self._sessions.end(request.scope.get("oncehouse.session") or "")
        return RedirectResponse("/login", status_code=303)

    # Metrics and errors.

    async def _serve_metrics(self, request: Request) -> Response:
        body, content_type = await run_in_threadpool(
            write_text, self._registry, request.headers.get("accept", "")
        )
        return Response(body, media_type=content_type)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return await self._refuse(request, 404, "Page not found.")

    async def _show_error(self, request: Request, error: Exception) -> Response:
        return await self._refuse(request, 409 if isinstance(error, ConfigurationError) else 503, str(error))


async def _show_failure(_request: Request, _error: Exception) -> Response:
    """An unexpected error; the trace goes to the server's log only."""
    return PlainTextResponse("internal error; see the log of the dashboard\n", status_code=500)


def _find_status(error: OncehouseError) -> int:
    if isinstance(error, InvalidQueryError):
        return 400
    if isinstance(error, UpgradeNeededError):
        return 503
    return 404 if isinstance(error, ConfigurationError) else 503


def _came_by_tls(request: Request) -> bool:
    """Whether the browser uses TLS, also through a proxy: the guard has compared host and origin."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _request_params(request: Request) -> dict[str, str]:
    return {**request.query_params, **{name: str(value) for name, value in request.path_params.items()}}


def _confirm(action: Action, request: Request) -> Page:
    query = f"?{request.url.query}" if request.url.query else ""
    context = {"action": action, "goes_to": f"{request.url.path}{query}"}
    return Page(template="confirm.html", title=action.question, context=context)


def _client_address(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown client"


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a form; empty if the body is larger than any form of the dashboard, or does not arrive."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_FORM_BYTES:
                return {}
    except ClientDisconnect:
        return {}
    text = body.decode("utf-8", errors="replace")
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}
