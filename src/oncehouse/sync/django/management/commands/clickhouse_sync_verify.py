"""`python manage.py clickhouse_sync_verify`: compare the database with ClickHouse, and sync what differs again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from oncehouse.errors import OncehouseError
from oncehouse.sync.discovery import select_to_verify
from oncehouse.sync.django.progress_lines import ProgressLines
from oncehouse.sync.django.setup import find_project_syncs
from oncehouse.sync.verify.advice import describe_differences
from oncehouse.sync.verify.repair import verify_and_repair
from oncehouse.sync.verify.verify import RANGE, SyncVerifyReport, verify

_DIFFERENCE_EXIT_CODE = 3


class Command(BaseCommand):
    help = "Compare the rows of the database with those in ClickHouse. Writers may go on."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("names", nargs="*", metavar="SYNC", help="only these syncs; all that are enabled")
        parser.add_argument(
            "--repair", action="store_true", help="sync what differs again, then compare once more"
        )
        parser.add_argument("--chunk", type=int, default=RANGE, help="keys read at a time (%(default)s)")

    def handle(self, *_arguments: Any, **options: Any) -> None:
        given = {"keys_a_range": options["chunk"], "report": ProgressLines(self.stderr.write)}
        is_clean = True
        try:
            chosen = select_to_verify(
                find_project_syncs(options["names"]), options["names"], repair=options["repair"]
            )
            for line in chosen.notes:
                self.stderr.write(line)
            for sync in chosen.syncs:
                report, repaired = (
                    verify_and_repair(sync, **given) if options["repair"] else (verify(sync, **given), 0)
                )
                self._print(report, repaired)
                is_clean = is_clean and report.is_clean
        except OncehouseError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        if not is_clean:
            raise CommandError("rows differ", returncode=_DIFFERENCE_EXIT_CODE)

    def _print(self, report: SyncVerifyReport, repaired: int) -> None:
        counts = ", ".join(f"{kind} {len(keys):,}" for kind, keys in report.differences.items())
        self.stdout.write(
            f"{report.sync}: {report.rows:,} rows in {report.ranges:,} ranges: {counts}, waiting {report.waiting:,}"
        )
        if repaired:
            self.stdout.write(f"{report.sync}: {repaired:,} keys were synced again")
        for line in describe_differences(report):
            self.stdout.write(line)
