"""The pages: which data of the monitor each one reads, and which template renders it. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from oncehouse.errors import ConfigurationError
from oncehouse.monitoring.batches import rate_outcome
from oncehouse.monitoring.etl import draw_graph, view_topic
from oncehouse.monitoring.overview import BatchStatus
from oncehouse.monitoring.unavailable import NoAnswer, ask
from oncehouse.web.page_templates import Page

if TYPE_CHECKING:
    from oncehouse.monitoring.monitor import Monitor
    from oncehouse.monitoring.overview import Overview
    from oncehouse.monitoring.pipelines import PipelineActivity
    from oncehouse.web.verification_jobs import Verifications

RequestParams = Mapping[str, str]
"""Path parameters and the query of a request."""

ROWS_A_PAGE = 50
_NOT_ARRIVED = frozenset({BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.RETRY, BatchStatus.PARKED})


class InvalidQueryError(ConfigurationError):
    """The query string of a request is invalid."""


class Pages:
    def __init__(self, monitor: Monitor, verifications: Verifications) -> None:
        self._monitor = monitor
        self._verifications = verifications

    def overview(self, _params: RequestParams) -> Page:
        activities = {name: ask(partial(self._monitor.activity, name)) for name in self._monitor.pipelines}
        cards = {
            name: {
                "activity": activity,
                "sums": None if isinstance(activity, NoAnswer) else sum_activity(activity),
            }
            for name, activity in activities.items()
        }
        return Page(template="overview.html", title="Overview", context={"cards": cards})

    def pipeline(self, params: RequestParams) -> Page:
        name = params["name"]
        activity = self._monitor.activity(name)
        return Page(
            template="pipeline.html",
            title=name,
            context={
                "name": name,
                "activity": activity,
                "sums": sum_activity(activity),
                "epochs": self._monitor.epochs(name, limit=8).epochs,
                "batches": self._monitor.batches(name, limit=8).batches,
                "ages": self._monitor.index_ages(name),
                "tables": list_tables(
                    activity, [table.name for table in self._monitor.pipeline(name).tables]
                ),
            },
        )

    def epochs(self, params: RequestParams) -> Page:
        name, before = params["name"], params.get("before")
        last = None if before is None else _read_query_number(before)
        page = self._monitor.epochs(name, before=last, limit=ROWS_A_PAGE)
        return Page(
            template="epochs.html",
            title=f"Epochs of {name}",
            context={"name": name, "page": page, "before": before},
        )

    def epoch(self, params: RequestParams) -> Page:
        name, number = params["name"], read_number(params["epoch"])
        detail = self._monitor.epoch(name, number)
        return Page(
            template="epoch.html",
            title=f"Epoch {number} of {name}",
            context={"name": name, "detail": detail, "epoch": detail.epoch},
        )

    def batches(self, params: RequestParams) -> Page:
        name, status, table = params["name"], params.get("status") or None, params.get("table") or None
        if status is not None and status not in set(BatchStatus):
            raise InvalidQueryError(
                f"{status!a} is not a batch status; choose one of {', '.join(BatchStatus)}"
            )
        page = self._monitor.batches(
            name,
            status=None if status is None else BatchStatus(status),
            table=table,
            after=params.get("after") or None,
            limit=ROWS_A_PAGE,
        )
        return Page(
            template="batches.html",
            title=f"Batches of {name}",
            context={
                "name": name,
                "page": page,
                "status": status,
                "table": table,
                "after": params.get("after") or None,
                "statuses": [str(one) for one in BatchStatus],
                "tables": [found.name for found in self._monitor.pipeline(name).tables],
            },
        )

    def batch(self, params: RequestParams) -> Page:
        name, batch_id = params["name"], params["batch"]
        detail = self._monitor.batch(name, batch_id)
        status = detail.view.batch.status
        return Page(
            template="batch.html",
            title=f"Batch {batch_id[:8]} of {name}",
            context={
                "name": name,
                "detail": detail,
                "batch": detail.view.batch,
                "rate_outcome": rate_outcome,
                "may_retry": status in {BatchStatus.PARKED, BatchStatus.RETRY},
            },
        )

    def dead_letters(self, params: RequestParams) -> Page:
        name, reason = params["name"], params.get("reason") or None
        counts = self._monitor.activity(name).overview.dead_letters
        page = self._monitor.dead_letters(
            name, reason=reason, after=params.get("after") or None, limit=ROWS_A_PAGE
        )
        return Page(
            template="dead_letters.html",
            title=f"Dead letters of {name}",
            context={
                "name": name,
                "page": page,
                "counts": counts,
                "reason": reason,
                "after": params.get("after") or None,
            },
        )

    def verify(self, params: RequestParams) -> Page:
        name = params["name"]
        self._monitor.pipeline(name)
        return Page(
            template="verify.html",
            title=f"Verify {name}",
            context={"name": name, "state": self._verifications.state(name)},
        )

    def etl(self, _params: RequestParams) -> Page:
        view = self._monitor.etl()
        context: dict[str, Any] = {"trouble": None, "topics": (), "graph": ""}
        if isinstance(view, NoAnswer):
            context["trouble"] = view.why
        else:
            # Names in it are escaped where it is drawn.
            context["graph"] = Markup(draw_graph(view))  # noqa: S704 - text of ours, with every name escaped
            context["topics"] = tuple(view_topic(one) for one in view.topics)
        return Page(template="etl.html", title="Facts", context=context)

    def outbox(self, _params: RequestParams) -> Page:
        return Page(template="outbox.html", title="Outbox", context={"outbox": self._monitor.outbox()})

    def consumers(self, _params: RequestParams) -> Page:
        targets = self._monitor.targets
        return Page(
            template="consumers.html",
            title="Consumers",
            context={
                "groups": self._monitor.groups(),
                "health": self._monitor.health(),
                "inboxes": ask(self._monitor.inboxes) if targets.messaging is not None else None,
            },
        )

    def syncs(self, _params: RequestParams) -> Page:
        return Page(template="sync.html", title="Model sync", context={"syncs": self._monitor.syncs()})

    def leases(self, _params: RequestParams) -> Page:
        found = {name: ask(partial(self._monitor.leases, name)) for name in self._monitor.pipelines}
        return Page(template="leases.html", title="Leases", context={"leases": found})


def read_number(text: str) -> int:
    """The number of an epoch, from the untrusted URL."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ConfigurationError(f"{text!a} is not an epoch number")
    return int(text)


def _read_query_number(text: str) -> int:
    try:
        return read_number(text)
    except ConfigurationError as error:
        raise InvalidQueryError(str(error)) from error


def sum_activity(activity: PipelineActivity) -> dict[str, Any]:
    """The totals that the page of a pipeline shows."""
    overview = activity.overview
    counts = {
        fate: sum(
            getattr(totals.counts, fate) for totals in overview.epochs if totals.kind in {"kafka", "frame"}
        )
        for fate in ("read", "new", "duplicate", "dead_letter", "skipped", "waiting")
    }
    return {
        **counts,
        "letters": sum(overview.dead_letters.values()),
        "open_rows": sum(found.rows for found in overview.open_parts),
        "waiting_rows": sum(found.rows for found in overview.batches if found.status in _NOT_ARRIVED)
        + sum(found.rows for found in overview.open_parts),
        "waiting_batches": sum(found.batches for found in overview.batches if found.status in _NOT_ARRIVED),
        "parked": sum(found.batches for found in overview.batches if found.status is BatchStatus.PARKED),
        "loaded": sum(overview.rows_in_clickhouse.values()),
        "batches": sum(found.batches for found in overview.batches),
        "running": sum(lease.ends_in_seconds > 0 for lease in overview.leases),
        "pauses": _pauses(overview),
    }


def list_tables(activity: PipelineActivity, declared: list[str]) -> list[dict[str, Any]]:
    """The state of each table's rows; tables that the pipeline file no longer has come last."""
    overview = activity.overview
    known = {found.table for found in overview.open_parts} | {found.table for found in overview.batches}
    known |= set(overview.rows_in_clickhouse)

    def count(table: str, *statuses: BatchStatus) -> int:
        return sum(x.batches for x in overview.batches if x.table == table and x.status in statuses)

    waiting = _NOT_ARRIVED - {BatchStatus.PARKED}
    return [
        {
            "table": table,
            "declared": table in declared,
            "parts": sum(found.parts for found in overview.open_parts if found.table == table),
            "part_rows": sum(found.rows for found in overview.open_parts if found.table == table),
            "waiting": count(table, *waiting),
            "parked": count(table, BatchStatus.PARKED),
            "loaded": count(table, BatchStatus.IN_CLICKHOUSE),
            "rows": overview.rows_in_clickhouse.get(table, 0),
        }
        for table in [*declared, *sorted(known - set(declared))]
    ]


def _pauses(overview: Overview) -> tuple[str, ...]:
    return tuple(
        f"{lease.stage}: {lease.pause}"
        for lease in overview.leases
        if lease.pause is not None and lease.ends_in_seconds > 0
    )
