"""`python manage.py clickhouse_sync`: run the project's syncs when they are due, until a signal."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from oncehouse.errors import OncehouseError
from oncehouse.sync.django.setup import choose_project_syncs
from oncehouse.sync.rounds.runner import DEFAULT_THREADS, FailedRun, RunOutcome, run_once, run_until_stopped


class Command(BaseCommand):
    help = "Sync changed rows into ClickHouse until stopped. Several processes may: they share the syncs between them."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("names", nargs="*", metavar="SYNC", help="only these syncs; all that are enabled")
        parser.add_argument("--once", action="store_true", help="sync what waits, then end")
        parser.add_argument(
            "--threads", type=int, default=DEFAULT_THREADS, help="syncs at a time (%(default)s)"
        )

    def handle(self, *_arguments: Any, **options: Any) -> None:
        try:
            syncs = choose_project_syncs(options["names"], self.stderr.write)
        except OncehouseError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        if options["once"]:
            outcomes = run_once(syncs, threads=options["threads"])
            for outcome in outcomes:
                self._print(outcome)
            if any(isinstance(outcome, FailedRun) for outcome in outcomes):
                raise CommandError("not all syncs went through; what failed is tried again by the next run")
            return
        stop = threading.Event()
        before = {
            number: signal.signal(number, lambda *_signal: stop.set())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            run_until_stopped(syncs, stop, report=self._print, threads=options["threads"])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _print(self, outcome: RunOutcome) -> None:
        if isinstance(outcome, FailedRun):
            self.stderr.write(outcome.text)
        elif outcome.operations:
            self.stdout.write(f"{outcome.sync}: {outcome.operations:,} operations, {outcome.rows:,} rows")
