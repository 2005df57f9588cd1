"""The `oncehouse` command: its parts, and how every failure ends.

An OncehouseError is one message and its exit code, never a trace. Anything else is a defect of ours: a short
message, and the trace for those who ask. Engines are imported by the commands that need them, so that
`oncehouse version` stays quick.
"""

from __future__ import annotations

import logging
import platform
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Annotated

import typer

from oncehouse import __version__
from oncehouse.cli.arguments import AsJson
from oncehouse.cli.doctor import doctor
from oncehouse.cli.etl import app as etl
from oncehouse.cli.init import init
from oncehouse.cli.messaging import cdc, dlq, inbox, outbox
from oncehouse.cli.monitor.dashboard import dashboard
from oncehouse.cli.monitor.metrics import metrics
from oncehouse.cli.output import say, show_error, show_json
from oncehouse.cli.pager import want_pager
from oncehouse.cli.pipeline import batches, dead_letters, schema, table
from oncehouse.cli.pipeline.bundle import bundle
from oncehouse.cli.pipeline.chaos import chaos
from oncehouse.cli.pipeline.check import check
from oncehouse.cli.pipeline.grants import grants
from oncehouse.cli.pipeline.import_files import import_folder
from oncehouse.cli.pipeline.leases import leases
from oncehouse.cli.pipeline.plan_capacity import plan_capacity
from oncehouse.cli.pipeline.rekey import rekey
from oncehouse.cli.pipeline.repair import repair
from oncehouse.cli.pipeline.requests import rebuild_index, replay
from oncehouse.cli.pipeline.run import run
from oncehouse.cli.pipeline.status import status
from oncehouse.cli.pipeline.upgrade import upgrade
from oncehouse.cli.pipeline.verify import verify
from oncehouse.cli.sync import app as sync
from oncehouse.cli.sync.pipeline import pipeline
from oncehouse.common import structured_logging
from oncehouse.common.extras import explain_missing
from oncehouse.common.file_permissions import describe_denied
from oncehouse.common.json_documents import Answer
from oncehouse.common.redaction import redact
from oncehouse.devstack.cli import app as dev
from oncehouse.errors import ConfigurationError, MissingExtraError, OncehouseError

_log = logging.getLogger("oncehouse.cli")

DEFECT_EXIT_CODE = 70
INTERRUPTED_EXIT_CODE = 130
_EXTRA_OF_COMMAND = {
    "cdc": "messaging",
    "chaos": "dev-stack",
    "dashboard": "web",
    "dev": "dev-stack",
    "dlq": "messaging",
    "etl": "etl",
    "inbox": "messaging",
    "metrics": "web",
    "outbox": "messaging",
    "sync": "sync",
}
"""The extra that brings all that a command needs; the commands of a pipeline are not named."""

START = "Start"
PIPELINE = "Pipeline"
REPAIR = "Repair and change"
DEPLOY = "Deploy"
MONITOR = "Monitor"
MESSAGING = "Messaging"
ETL = "ETL and model sync"

app = typer.Typer(
    name="oncehouse",
    help="Events reach ClickHouse once: Kafka to ClickHouse with exact deduplication and harmless retries.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True, kw_only=True)
class Versions(Answer, of=("version",)):
    oncehouse: str
    python: str


def print_version(*, wanted: bool) -> None:
    if wanted:
        say(f"oncehouse {__version__} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def accept_options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an unexpected failure.")] = False,
    no_pager: Annotated[
        bool, typer.Option("--no-pager", help="Show long listings at once, without a pager.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Same as the command `version`.",
            is_eager=True,
            callback=lambda wanted: print_version(wanted=wanted),
        ),
    ] = False,
) -> None:
    # `main` looks for `--debug` itself, because it must know even when reading the arguments fails.
    _ = debug, version
    want_pager(wanted=not no_pager)


def version(*, as_json: AsJson = False) -> None:
    """Print the version of oncehouse and of Python."""
    if as_json:
        show_json(Versions(oncehouse=__version__, python=platform.python_version()))
    else:
        print_version(wanted=True)


sync.app.command()(pipeline)

app.command(rich_help_panel=START)(init)
app.command(rich_help_panel=START)(check)
app.command(rich_help_panel=START)(doctor)
app.command(rich_help_panel=START)(plan_capacity)
app.add_typer(table.app, name="table", rich_help_panel=START)
app.add_typer(dev, name="dev", rich_help_panel=START)
app.command(rich_help_panel=START)(version)

app.command(rich_help_panel=PIPELINE)(run)
app.command("import", rich_help_panel=PIPELINE)(import_folder)
app.command(rich_help_panel=PIPELINE)(status)
app.command(rich_help_panel=PIPELINE)(leases)
app.add_typer(batches.app, name="batches", rich_help_panel=PIPELINE)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=PIPELINE)
app.add_typer(schema.app, name="schema", rich_help_panel=PIPELINE)

app.command(rich_help_panel=REPAIR)(verify)
app.command(rich_help_panel=REPAIR)(repair)
app.command(rich_help_panel=REPAIR)(replay)
app.command("rebuild-index", rich_help_panel=REPAIR)(rebuild_index)
app.command(rich_help_panel=REPAIR)(rekey)
app.command(rich_help_panel=REPAIR)(upgrade)
app.command(rich_help_panel=REPAIR)(chaos)

app.command(rich_help_panel=DEPLOY)(bundle)
app.command(rich_help_panel=DEPLOY)(grants)

app.command(rich_help_panel=MONITOR)(dashboard)
app.command(rich_help_panel=MONITOR)(metrics)

app.add_typer(outbox.app, name="outbox", rich_help_panel=MESSAGING)
app.add_typer(inbox.app, name="inbox", rich_help_panel=MESSAGING)
app.add_typer(dlq.app, name="dlq", rich_help_panel=MESSAGING)
app.add_typer(cdc.app, name="cdc", rich_help_panel=MESSAGING)

app.add_typer(etl.app, name="etl", rich_help_panel=ETL)
app.add_typer(sync.app, name="sync", rich_help_panel=ETL)


def main() -> None:
    """Entry point of the console script."""
    threading.excepthook = _report_thread_defect
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        app(arguments, prog_name="oncehouse")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except OncehouseError as error:
        show_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except ImportError as error:
        return _report_missing_package(error, arguments)
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it is must end in an exit code
        return _report_defect(error, debug="--debug" in arguments)
    finally:
        structured_logging.stop()
    return 0


def _report_thread_defect(failure: threading.ExceptHookArgs) -> None:
    """As Python prints it, without secrets."""
    if structured_logging.is_started() and failure.exc_value is not None:
        _log.error("a thread ended by an unexpected failure", exc_info=failure.exc_value)
        return
    trace = traceback.format_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    name = failure.thread.name if failure.thread is not None else "unknown"
    sys.stderr.write(redact(f"Exception in thread {name}:\n{''.join(trace)}"))


def _report_missing_package(error: ImportError, arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), "")
    advice = explain_missing(error, _EXTRA_OF_COMMAND.get(command, "pipeline"), f"oncehouse {command}")
    if advice is None:
        return _report_defect(error, debug="--debug" in arguments)
    show_error(advice)
    return MissingExtraError.exit_code


def _report_defect(error: Exception, *, debug: bool) -> int:
    if isinstance(error, PermissionError) and error.filename is not None:
        show_error(describe_denied(error.filename, error))
        return ConfigurationError.exit_code
    if structured_logging.is_started():
        _log.critical("this is a defect of oncehouse", exc_info=error)
        return DEFECT_EXIT_CODE
    if debug:
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
        return DEFECT_EXIT_CODE
    first_line = (str(error).splitlines() or [""])[0]
    show_error(
        f"unexpected {type(error).__name__}: {first_line[:300]}",
        hint="this is a defect of oncehouse; `oncehouse --debug …` shows the trace",
    )
    return DEFECT_EXIT_CODE
