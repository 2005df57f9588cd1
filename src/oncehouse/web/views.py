"""The pages: what is asked of the lookout, and which template shows it. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from oncehouse.errors import ConfigurationError
from oncehouse.monitoring.etl import draw_graph, view_topic
from oncehouse.monitoring.message_trace import NoAnswer, ask
from oncehouse.monitoring.overview import BatchStatus
from oncehouse.web.rendering import Page

if TYPE_CHECKING:
    from oncehouse.monitoring.monitor import Lookout
    from oncehouse.monitoring.overview import Overview
    from oncehouse.monitoring.pipelines import Road
    from oncehouse.web.verification_jobs import Verifications

Asked = Mapping[str, str]
"""What the address says: parts of the path, and the query."""

ROWS_A_PAGE = 50
_NOT_ARRIVED = frozenset({BatchStatus.NEW, BatchStatus.IN_PROCESS, BatchStatus.RETRY, BatchStatus.PARKED})


class MisaskedError(ConfigurationError):
    """The query of an address says what nothing could be asked for."""


class Pages:
    def __init__(self, lookout: Lookout, verifications: Verifications) -> None:
        self._lookout = lookout
        self._verifications = verifications

    def overview(self, _asked: Asked) -> Page:
        roads = {name: ask(partial(self._lookout.road, name)) for name in self._lookout.pipelines}
        cards = {
            name: {"road": road, "sums": None if isinstance(road, NoAnswer) else sum_road(road)}
            for name, road in roads.items()
        }
        return Page(template="overview.html", title="Overview", shows={"cards": cards})

    def pipeline(self, asked: Asked) -> Page:
        name = asked["name"]
        road = self._lookout.road(name)
        return Page(
            template="pipeline.html",
            title=name,
            shows={
                "name": name,
                "road": road,
                "sums": sum_road(road),
                "epochs": self._lookout.epochs(name, limit=8).epochs,
                "batches": self._lookout.batches(name, limit=8).batches,
                "ages": self._lookout.index_ages(name),
                "tables": list_tables(road, [table.name for table in self._lookout.pipeline(name).tables]),
            },
        )

    def epochs(self, asked: Asked) -> Page:
        name, before = asked["name"], asked.get("before")
        last = None if before is None else _read_query_number(before)
        page = self._lookout.epochs(name, before=last, limit=ROWS_A_PAGE)
        return Page(
            template="epochs.html",
            title=f"Epochs of {name}",
            shows={"name": name, "page": page, "before": before},
        )

    def epoch(self, asked: Asked) -> Page:
        name, number = asked["name"], read_number(asked["epoch"])
        detail = self._lookout.epoch(name, number)
        return Page(
            template="epoch.html",
            title=f"Epoch {number} of {name}",
            shows={"name": name, "detail": detail, "epoch": detail.epoch},
        )

    def batches(self, asked: Asked) -> Page:
        name, status, table = asked["name"], asked.get("status") or None, asked.get("table") or None
        if status is not None and status not in set(BatchStatus):
            raise MisaskedError(f"{status!a} is no status of a batch; there are {', '.join(BatchStatus)}")
        page = self._lookout.batches(
            name,
            status=None if status is None else BatchStatus(status),
            table=table,
            after=asked.get("after") or None,
            limit=ROWS_A_PAGE,
        )
        return Page(
            template="batches.html",
            title=f"Batches of {name}",
            shows={
                "name": name,
                "page": page,
                "status": status,
                "table": table,
                "after": asked.get("after") or None,
                "statuses": [str(one) for one in BatchStatus],
                "tables": [found.name for found in self._lookout.pipeline(name).tables],
            },
        )

    def batch(self, asked: Asked) -> Page:
        name, batch_id = asked["name"], asked["batch"]
        detail = self._lookout.batch(name, batch_id)
        status = detail.view.batch.status
        return Page(
            template="batch.html",
            title=f"Batch {batch_id[:8]} of {name}",
            shows={
                "name": name,
                "detail": detail,
                "batch": detail.view.batch,
                "may_retry": status in {BatchStatus.PARKED, BatchStatus.RETRY},
            },
        )

    def letters(self, asked: Asked) -> Page:
        name, reason = asked["name"], asked.get("reason") or None
        counts = self._lookout.road(name).overview.dead_letters
        page = self._lookout.letters(name, reason=reason, after=asked.get("after") or None, limit=ROWS_A_PAGE)
        return Page(
            template="letters.html",
            title=f"Dead letters of {name}",
            shows={
                "name": name,
                "page": page,
                "counts": counts,
                "reason": reason,
                "after": asked.get("after") or None,
            },
        )

    def verify(self, asked: Asked) -> Page:
        name = asked["name"]
        self._lookout.pipeline(name)
        return Page(
            template="verify.html",
            title=f"Verify {name}",
            shows={"name": name, "state": self._verifications.state(name)},
        )

    def etl(self, _asked: Asked) -> Page:
        view = self._lookout.etl()
        shows: dict[str, Any] = {"trouble": None, "topics": (), "graph": ""}
        if isinstance(view, NoAnswer):
            shows["trouble"] = view.why
        else:
            # Names in it are escaped where it is drawn.
            shows["graph"] = Markup(draw_graph(view))  # noqa: S704 - text of ours, with every name escaped
            shows["topics"] = tuple(view_topic(one) for one in view.topics)
        return Page(template="etl.html", title="Facts", shows=shows)

    def outbox(self, _asked: Asked) -> Page:
        return Page(template="outbox.html", title="Outbox", shows={"outbox": self._lookout.outbox()})

    def consumers(self, _asked: Asked) -> Page:
        watched = self._lookout.watched
        return Page(
            template="consumers.html",
            title="Consumers",
            shows={
                "groups": self._lookout.groups(),
                "health": self._lookout.health(),
                "inboxes": ask(self._lookout.inboxes) if watched.messaging is not None else None,
            },
        )

    def syncs(self, _asked: Asked) -> Page:
        return Page(template="sync.html", title="Model sync", shows={"syncs": self._lookout.syncs()})

    def leases(self, _asked: Asked) -> Page:
        found = {name: ask(partial(self._lookout.leases, name)) for name in self._lookout.pipelines}
        return Page(template="leases.html", title="Leases", shows={"leases": found})


def read_number(text: str) -> int:
    """The number of an epoch, which anybody may have written into the address."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ConfigurationError(f"{text!a} is no epoch")
    return int(text)


def _read_query_number(text: str) -> int:
    try:
        return read_number(text)
    except ConfigurationError as error:
        raise MisaskedError(str(error)) from error


def sum_road(road: Road) -> dict[str, Any]:
    """What a road shows in single figures."""
    overview = road.overview
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


def list_tables(road: Road, declared: list[str]) -> list[dict[str, Any]]:
    """Each table with where its rows stand; those that the pipeline file has no longer come last."""
    overview = road.overview
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
