"""`oncehouse inbox work` and `oncehouse inbox serve`: until a signal, which lets what has begun finish first."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncehouse.cli.arguments import DEFAULT_MESSAGING_FILE, AsJson, Logs, MessagingFile
from oncehouse.cli.messaging.inbox_options import OneInbox, find_handler, open_inbox
from oncehouse.cli.output import print_note, say, show_error, show_json
from oncehouse.cli.pipeline.run import INTERRUPTED_EXIT_CODE, Stop
from oncehouse.common import structured_logging
from oncehouse.common.extras import needs_extra
from oncehouse.common.json_documents import Answer, Inlined
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehouse.messaging.inbox.dispatcher import WorkCounts
    from oncehouse.messaging.inbox.worker import InboxWorker

_Handler = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:HANDLER", help="The function (session, message), such as shop.billing:bill."
    ),
]


@dataclass(frozen=True, kw_only=True)
class WorkEnd(Answer, of=("inbox work",)):
    inbox: str
    counts: Inlined[WorkCounts]


def work(
    handler: _Handler,
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    inbox: OneInbox = None,
    once: Annotated[bool, typer.Option("--once", help="Handle what is due, then end.")] = False,
    as_json: AsJson = False,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Handle the messages of a stored inbox until stopped. Several processes may share it."""
    from oncehouse.messaging.inbox.stored import StoredInbox

    function = find_handler(handler)
    with open_inbox(file) as opened:
        name = opened.settings.require_name(inbox)
        structured_logging.add_process_fields(inbox=name)
        stored = StoredInbox(name, opened.engine)
        worker = stored.worker(
            function,
            settings=opened.settings.for_worker(),
            report=lambda error: show_error(str(error)),
        )
        with Stop(print_note) as stop:
            _run(worker, stop, once=once)
    if as_json:
        show_json(WorkEnd(inbox=name, counts=worker.counts))
    else:
        counts = worker.counts
        say(f"{name}: {counts.done:,} handled, {counts.failed:,} attempts failed, {counts.parked:,} parked")
        if counts.failed:
            print_note("`oncehouse inbox list --state waiting --state parked` shows why")
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _run(worker: InboxWorker, stop: Stop, *, once: bool) -> None:
    def wait_for_request() -> None:
        stop.requested.wait()
        worker.stop()

    threading.Thread(target=wait_for_request, daemon=True).start()
    try:
        worker.run(once=once)
    except KeyboardInterrupt:
        # Python would wait for what the handlers are doing; the second signal asked not to.
        os._exit(INTERRUPTED_EXIT_CODE)


def serve(
    file: MessagingFile = DEFAULT_MESSAGING_FILE,
    *,
    log_format: Logs = None,  # noqa: ARG001 - its callback acts
) -> None:
    """Receive messages over HTTP into the stored inboxes of the file until stopped."""
    with needs_extra("inlet", "the HTTP inlet"):
        from oncehouse.messaging.inbox.http_endpoint import InboxEndpoint, listen
        from oncehouse.messaging.inbox.http_endpoint import serve as run_server
    from oncehouse.messaging.inbox.stored import StoredInbox

    with open_inbox(file) as opened:
        settings = opened.settings
        if not settings.names:
            raise ConfigurationError("inbox.names is empty; name the inboxes that callers may write to")
        inboxes = {name: StoredInbox(name, opened.engine) for name in settings.names}
        inboxes[settings.names[0]].check()
        inlet = settings.inlet
        token = None if inlet.token is None else inlet.token.get_secret_value()
        app = InboxEndpoint(inboxes, token=token, max_body_bytes=inlet.max_body).app
        with listen(inlet.host, inlet.port) as listener, Stop(print_note) as stop:
            host, port = listener.getsockname()[:2]
            say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port} for {', '.join(inboxes)}")
            sys.stdout.flush()  # the reader of this line may be a pipe
            try:
                run_server(app, listener, stop.requested, drain_seconds=settings.drain)
            except KeyboardInterrupt:
                os._exit(INTERRUPTED_EXIT_CODE)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
