"""A storm over the syncs of either framework: what is opened, changed, started and written for it.

A storm's own weather, which is what happens to the syncs and when, is a test's part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import shop_writer
import stall_writer
import sync_stall
import synced_shop
from changed_syncs import Attributes, changed
from oncehouse.sync.model.model_sync import ModelSync
from sync_jobs import Job, start_job

from sync_shop import clickhouse_models as shop_syncs  # isort: skip - after the settings of synced_shop

WRITERS = 3


class Writer(Protocol):
    def write(self) -> None:
        """One change, of any kind."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework's shop: its syncs by what they are for, and what happens there."""

    module: str
    syncs: tuple[type[ModelSync], ...]
    people: type[ModelSync]
    orders: type[ModelSync]
    seats: type[ModelSync]
    open: Callable[..., AbstractContextManager[Any]]
    add_rows: Callable[[Any, int], None]
    make_writer: Callable[[Any, int], Writer]
    assert_equal: Callable[[Any], None]


DJANGO = Framework(
    module="synced_shop",
    syncs=synced_shop.SYNCS,
    people=shop_syncs.CustomerSync,
    orders=shop_syncs.OrderSync,
    seats=shop_syncs.SeatSync,
    open=synced_shop.open_synced_shop,
    add_rows=shop_writer.add_rows,
    make_writer=shop_writer.Writer,
    assert_equal=synced_shop.assert_equal,
)
SQLALCHEMY = Framework(
    module="sync_stall",
    syncs=sync_stall.SYNCS,
    people=sync_stall.BuyerSync,
    orders=sync_stall.SaleSync,
    seats=sync_stall.ChairSync,
    open=sync_stall.open_synced_stall,
    add_rows=stall_writer.add_rows,
    make_writer=stall_writer.Writer,
    assert_equal=sync_stall.assert_equal,
)
FRAMEWORKS = {"django": DJANGO, "sqlalchemy": SQLALCHEMY}


@dataclass(frozen=True, kw_only=True)
class Storm:
    framework: Framework
    shop: Any
    url: str
    clickhouse_port: int
    database: str
    settings: Attributes
    changes: Mapping[type[ModelSync], Attributes]

    def start_job(
        self,
        *,
        through: str | None = None,
        changes: Mapping[type[ModelSync], Attributes] | None = None,
        **given: Any,
    ) -> AbstractContextManager[Job]:
        """A process with the syncs of the storm, or with these; `through` stands before ClickHouse."""
        address = {
            "db_url": through or f"http://127.0.0.1:{self.clickhouse_port}",
            "db_name": self.database,
        }
        return start_job(
            module=self.framework.module,
            url=self.url,
            settings={**self.settings, "CLICKHOUSE_DATABASES": {"default": address}},
            syncs={sync.__name__: dict(attributes) for sync, attributes in (changes or self.changes).items()},
            **given,
        )

    @contextmanager
    def writing(self, seed: int) -> Iterator[None]:
        """Writers at work until the block ends."""
        stop = threading.Event()

        def work(writer: Writer) -> None:
            try:
                while not stop.is_set():
                    writer.write()
            finally:
                writer.close()

        writers = [
            threading.Thread(target=work, args=(self.framework.make_writer(self.shop, seed * 10 + n),))
            for n in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            stop.set()
            for writer in writers:
                writer.join()

    def assert_equal(self) -> None:
        self.framework.assert_equal(self.shop)


@contextmanager
def open_storm(
    framework: Framework,
    url: str,
    clickhouse: Any,
    database: str,
    *,
    calm: Attributes,
    orders: Attributes | None = None,
    rows: int = 0,
    **settings: Any,
) -> Iterator[Storm]:
    """All syncs are changed to `calm`, those of orders to `orders` too; seats collapse. The rows are told by nobody."""
    changes = {sync: dict(calm) for sync in framework.syncs}
    changes[framework.orders].update(orders or {})
    changes[framework.seats]["engine"] = "collapsing"
    with framework.open(url, clickhouse, database, **settings) as shop, changed(changes):
        framework.add_rows(shop, rows)
        shop.forget_waiting()
        yield Storm(
            framework=framework,
            shop=shop,
            url=url,
            clickhouse_port=clickhouse.place.ports["http"],
            database=database,
            settings=settings,
            changes=changes,
        )
