"""`python manage.py clickhouse_sync_backfill`: sync the rows that are there already, while writers and syncs go on."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from oncehouse.errors import OncehouseError
from oncehouse.sync.backfill.backfill import CHUNK, backfill
from oncehouse.sync.django.progress_lines import ProgressLines
from oncehouse.sync.django.setup import choose_project_syncs


class Command(BaseCommand):
    help = "Sync the rows that are there already. Killed or stopped, it goes on where it was when it is run again."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("names", nargs="*", metavar="SYNC", help="only these syncs; all that are enabled")
        parser.add_argument("--chunk", type=int, default=CHUNK, help="keys read at a time (%(default)s)")
        parser.add_argument("--restart", action="store_true", help="begin with the first key")

    def handle(self, *_arguments: Any, **options: Any) -> None:
        stop = threading.Event()
        before = {
            number: signal.signal(number, lambda *_signal: stop.set())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        progress = ProgressLines(self.stderr.write)
        try:
            for sync in choose_project_syncs(options["names"], self.stderr.write):
                result = backfill(
                    sync, chunk=options["chunk"], restart=options["restart"], stop=stop, report=progress
                )
                self.stdout.write(
                    f"{result.sync}: {result.keys:,} keys, {result.rows:,} rows in {result.seconds:,.1f} s"
                )
                if not result.finished:
                    raise CommandError("not finished; run it again and it goes on there")
        except OncehouseError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
