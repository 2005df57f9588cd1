"""What tests of late and repeated INSERTs share: other writers who push tokens out of a table's memory."""

from __future__ import annotations

from insert_blocks import ONE_ROW_BLOCKS
from live_pipeline import LivePipeline
from oncehouse.clickhouse.table_info import read_setting

FOREIGN = "of somebody else"


def push_token_out(live_pipeline: LivePipeline, *, also_delete: str = "") -> None:
    """Other writers insert as many blocks as the table remembers, and one more; then their rows are deleted."""
    live_pipeline.client.command(
        f"ALTER TABLE {live_pipeline.table} MODIFY SETTING "
        "parts_to_delay_insert = 100000, parts_to_throw_insert = 100000"
    )
    defined = live_pipeline.client.query(
        "SELECT engine_full FROM system.tables WHERE database = {database:String} AND name = 'events'",
        parameters={"database": live_pipeline.database},
    ).result_rows[0][0]
    blocks = (read_setting(defined, "non_replicated_deduplication_window") or 0) + 1
    assert blocks > 1000
    rows = "".join(f"{FOREIGN}\t{number}\n" for number in range(blocks))
    live_pipeline.client.raw_insert(
        live_pipeline.table,
        ["note", "product_id"],
        rows,
        fmt="TabSeparated",
        settings=ONE_ROW_BLOCKS,
    )
    counted = live_pipeline.client.query(
        f"SELECT count() FROM {live_pipeline.table} WHERE note = '{FOREIGN}'"
    ).result_rows
    assert counted == [(blocks,)]
    live_pipeline.client.command(f"DELETE FROM {live_pipeline.table} WHERE note = '{FOREIGN}' {also_delete}")
