"""A pipeline of which only its section `spark` matters."""

from __future__ import annotations

from oncehouse.config.pipeline import Pipeline


def make_cluster_pipeline(files: str = "files", **spark: object) -> Pipeline:
    return Pipeline(
        pipeline="shop",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["none"]},
            "fields": {"id": "UInt64"},
        },
        identity={"fields": ["id"]},
        tables=[{"name": "none"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///none.db", "files": files},
        spark=spark,
    )
