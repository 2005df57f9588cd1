"""`python manage.py clickhouse_sync_verify`: compare the database with ClickHouse, and sync what differs again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from oncehouse.errors import OncehouseError
from oncehouse.sync.django.choosing import choose
from oncehouse.sync.repairing import verify_and_repair
from oncehouse.sync.verifying import VerifyReport, verify

_EXAMPLES = 5
_DIFFERENCE_EXIT_CODE = 3


class Command(BaseCommand):
    help = "Compare the rows of the database with those in ClickHouse. Writers may go on."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("names", nargs="*", metavar="SYNC", help="only these syncs; all that are enabled")
        parser.add_argument(
            "--repair", action="store_true", help="sync what differs again, then compare once more"
        )

    def handle(self, *_arguments: Any, **options: Any) -> None:
        try:
            reports = [
                verify_and_repair(sync)[0] if options["repair"] else verify(sync)
                for sync in choose(options["names"])
            ]
        except OncehouseError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        for report in reports:
            self._tell(report)
        if not all(report.is_clean for report in reports):
            raise CommandError(
                "rows differ; --repair syncs them again, clickhouse_sync_backfill sends all",
                returncode=_DIFFERENCE_EXIT_CODE,
            )

    def _tell(self, report: VerifyReport) -> None:
        counts = ", ".join(f"{kind} {len(keys):,}" for kind, keys in report.differences.items())
        self.stdout.write(
            f"{report.sync}: {report.rows:,} rows in {report.ranges:,} ranges: {counts}, waiting {report.waiting:,}"
        )
        for kind, keys in report.differences.items():
            if keys:
                self.stdout.write(f"{report.sync}: {kind}: {', '.join(keys[:_EXAMPLES])}")
