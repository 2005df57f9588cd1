"""The dashboard as an application: which address is which page or deed, and how every request ends.

Pages answer a browser with HTML and an event stream with what changes. A deed is asked about (GET) and done (POST, with
the form's token); in read-only mode it is neither.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from oncehouse.errors import ConfigurationError, OncehouseError, UpgradeNeededError
from oncehouse.metrics.collect import collect
from oncehouse.metrics.exposition import make_registry, write_text
from oncehouse.web.actions import Deed, Deeds
from oncehouse.web.flash_messages import Notes
from oncehouse.web.live_updates import MOST_STREAMS, REFRESH_SECONDS, Shared, stream_changes
from oncehouse.web.rendering import STATIC, Page, make_environment, render, render_live
from oncehouse.web.security import SAFE_METHODS, SESSION_COOKIE, SESSION_SECONDS, Guard, Sessions, safe_next
from oncehouse.web.verification_jobs import Verifications
from oncehouse.web.views import MisaskedError, Pages

if TYPE_CHECKING:
    from oncehouse.common.http_auth import Door
    from oncehouse.monitoring.monitor import Lookout

Asked = Mapping[str, str]
_EVENTS = "text/event-stream"
_MOST_FORM_BYTES = 8192
_MOST_FIELDS = 20
_STALE_FORM = "The form is too old or not ours; nothing was done. Open it anew."
_ONLY_SHOWS = "This dashboard only shows; it was started with --read-only."


class Dashboard:
    def __init__(
        self,
        lookout: Lookout,
        door: Door,
        *,
        read_only: bool = False,
        say: Callable[[str], None] = lambda _text: None,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """`say` is told of every deed, with who asked for it."""
        self._lookout = lookout
        self._door = door
        self._read_only = read_only
        self._say = say
        self._refresh_seconds = refresh_seconds
        self._sessions = Sessions()
        self._notes = Notes()
        self._shared = Shared()
        self._streams = 0
        self._environment = make_environment()
        self._verifications = Verifications(lookout)
        self._registry = make_registry(lambda: collect(lookout))
        self.stopping = False
        """Set: event streams end."""
        inside = Starlette(
            routes=self._routes(),
            exception_handlers={
                404: self._not_found,
                OncehouseError: self._tell_trouble,
                Exception: _tell_failure,
            },
        )
        self.app = Guard(inside, door=door, sessions=self._sessions)

    def _routes(self) -> list[Route | Mount]:
        pages, deeds = Pages(self._lookout, self._verifications), Deeds(self._lookout)
        road = "/pipelines/{name}"
        shown = {
            "/": pages.overview,
            road: pages.pipeline,
            f"{road}/epochs": pages.epochs,
            f"{road}/epochs/{{epoch}}": pages.epoch,
            f"{road}/batches": pages.batches,
            f"{road}/batches/{{batch}}": pages.batch,
            f"{road}/letters": pages.letters,
            "/etl": pages.etl,
            "/outbox": pages.outbox,
            "/consumers": pages.consumers,
            "/sync": pages.syncs,
            "/leases": pages.leases,
        }
        done = {
            f"{road}/batches/{{batch}}/retry": deeds.retry_batch,
            f"{road}/letters/replay": deeds.replay_letters,
            f"{road}/tables/{{table}}/replay": deeds.refill_table,
            "/etl/{topic}/pause": deeds.pause_topic,
            "/etl/{topic}/resume": deeds.resume_topic,
            "/etl/{topic}/unlock": deeds.unlock_topic,
            "/outbox/{message}/retry": deeds.retry_message,
            "/inboxes/{inbox}/retry": deeds.retry_inbox,
        }
        return [
            *(Route(path, self._show(build), methods=["GET"]) for path, build in shown.items()),
            *(Route(path, self._ask_or_do(find), methods=["GET", "POST"]) for path, find in done.items()),
            Route(f"{road}/verify", self._show_or_verify(pages.verify), methods=["GET", "POST"]),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/metrics", self._tell_metrics, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    # Pages.

    def _show(self, build: Callable[[Asked], Page]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if request.method == "GET" and _EVENTS in request.headers.get("accept", ""):
                return self._open_stream(request, build)
            return await self._answer(request, lambda: build(_asked(request)))

        return handle

    async def _answer(self, request: Request, build: Callable[[], Page]) -> Response:
        page = await run_in_threadpool(self._build, build)
        text = render(self._environment, page, self._frame(request, note=self._notes.take(request)))
        return HTMLResponse(text, status_code=page.status, headers={"vary": "accept, cookie"})

    def _build(self, build: Callable[[], Page]) -> Page:
        try:
            return build()
        except OncehouseError as error:
            shows = {"why": str(error)}
            return Page(template="trouble.html", title="Trouble", shows=shows, status=_find_status(error))

    def _frame(self, request: Request, note: str | None = None) -> dict[str, Any]:
        """What every page shows besides its own."""
        session = request.scope.get("oncehouse.session")
        watched = self._lookout.watched
        return {
            "here": request.url.path,
            "may_act": not self._read_only,
            "read_only": self._read_only,
            "form_token": self._sessions.form_token(session or ""),
            "note": note,
            "logged_in": self._door.token is not None and session is not None,
            "pipelines": list(self._lookout.pipelines),
            "watches": {
                "etl": watched.etl is not None,
                "outbox": watched.messaging is not None,
                "consumers": watched.messaging is not None or bool(watched.health_files),
                "sync": bool(watched.modules),
            },
        }

    # Event streams.

    def _open_stream(self, request: Request, build: Callable[[Asked], Page]) -> Response:
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("too many live pages; close some\n", status_code=503)
        return StreamingResponse(
            self._stream(request, build), media_type=_EVENTS, headers={"x-accel-buffering": "no"}
        )

    async def _stream(self, request: Request, build: Callable[[Asked], Page]) -> AsyncIterator[str]:
        frame = self._frame(request)
        key = (str(request.url), frame["form_token"])

        def make() -> str:
            page = self._build(lambda: build(_asked(request)))
            return render_live(self._environment, page, frame)

        async def make_shared() -> str:
            return await run_in_threadpool(self._shared.get, key, make)

        async def is_over() -> bool:
            session = request.scope["oncehouse.session"]
            ended = self._door.token is not None and not self._sessions.keeps(session)
            return self.stopping or ended or await request.is_disconnected()

        self._streams += 1
        try:
            async for event in stream_changes(
                make_shared, is_over=is_over, refresh_seconds=self._refresh_seconds
            ):
                yield event
        finally:
            self._streams -= 1

    # Deeds.

    def _ask_or_do(self, find: Callable[[Asked], Deed]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if self._read_only:
                return await self._refuse(request, 403, _ONLY_SHOWS)
            asked = _asked(request)
            if request.method in SAFE_METHODS:
                return await self._answer(request, lambda: _confirm(find(asked), request))
            if not await self._brings_token(request):
                return await self._refuse(request, 403, _STALE_FORM)
            deed = await run_in_threadpool(find, asked)
            told = await run_in_threadpool(deed.do)
            self._say(f"{_visitor(request)}: {deed.button}: {told}")
            return RedirectResponse(self._notes.leave(told, deed.back), status_code=303)

        return handle

    def _show_or_verify(self, build: Callable[[Asked], Page]) -> Callable[[Request], Any]:
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
        page = Page(template="trouble.html", title="Refused", shows={"why": why}, status=status)
        return await self._answer(request, lambda: page)

    # Coming in.

    async def _log_in(self, request: Request) -> Response:
        goes_to = safe_next(request.query_params.get("next", "/"))
        if self._door.token is None:
            return RedirectResponse(goes_to, status_code=303)
        failed = False
        if request.method == "POST":
            form = await _read_form(request)
            if self._door.opens_for(form.get("token", "")):
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
            template="login.html", title="Log in", shows={"failed": failed}, status=401 if failed else 200
        )
        return await self._answer(request, lambda: page)

    async def _log_out(self, request: Request) -> Response:
        if await self._brings_token(request):
            self._sessions.end(request.scope.get("oncehouse.session") or "")
        return RedirectResponse("/login", status_code=303)

    # The rest.

    async def _tell_metrics(self, request: Request) -> Response:
        body, content_type = await run_in_threadpool(
            write_text, self._registry, request.headers.get("accept", "")
        )
        return Response(body, media_type=content_type)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return await self._refuse(request, 404, "There is no such page.")

    async def _tell_trouble(self, request: Request, error: Exception) -> Response:
        return await self._refuse(request, 409 if isinstance(error, ConfigurationError) else 503, str(error))


async def _tell_failure(_request: Request, _error: Exception) -> Response:
    """A defect of ours; the server writes down its trace, which is nobody else's."""
    return PlainTextResponse("this failed here; the dashboard's own log says why\n", status_code=500)


def _find_status(error: OncehouseError) -> int:
    if isinstance(error, MisaskedError):
        return 400
    if isinstance(error, UpgradeNeededError):
        return 503
    return 404 if isinstance(error, ConfigurationError) else 503


def _came_by_tls(request: Request) -> bool:
    """Whether the browser speaks TLS, be it with a proxy before us: the guard has compared host and origin."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _asked(request: Request) -> dict[str, str]:
    return {**request.query_params, **{name: str(value) for name, value in request.path_params.items()}}


def _confirm(deed: Deed, request: Request) -> Page:
    query = f"?{request.url.query}" if request.url.query else ""
    shows = {"deed": deed, "goes_to": f"{request.url.path}{query}"}
    return Page(template="confirm.html", title=deed.question, shows=shows)


def _visitor(request: Request) -> str:
    return request.client.host if request.client is not None else "somebody"


async def _read_form(request: Request) -> dict[str, str]:
    """Fields of a plain form; nothing of one that is larger than any of ours."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            return {}
    text = body.decode("utf-8", errors="replace")
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}
