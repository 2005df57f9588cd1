"""The identity rule as the ledger keeps it, so that older processes read it where they can."""

from __future__ import annotations

import json

from oncehouse.config.pipeline import Pipeline
from oncehouse.pipeline.schema.identity_guard import format_section, identity_of, with_section


def make_pipeline(**identity: object) -> Pipeline:
    return Pipeline(
        pipeline="events",
        source={
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["events"]},
            "fields": {"id": "String"},
        },
        identity={"fields": ["id"], **identity},
        tables=[{"name": "shop.events"}],
        clickhouse={"url": "http://127.0.0.1:9"},
        ledger={"catalog": "sqlite:///c.db", "files": "files"},
    )


def test_normalize_is_written_only_where_it_is_asked_for():
    plain = make_pipeline()
    normal = make_pipeline(normalize="nfc")
    assert "normalize" not in json.loads(format_section(plain))
    assert json.loads(format_section(normal))["normalize"] == "nfc"
    assert identity_of(plain) == identity_of(make_pipeline(normalize="none"))
    assert identity_of(plain) != identity_of(normal)
    for written, read in ((plain, normal), (normal, plain)):
        assert identity_of(with_section(read, format_section(written))) == identity_of(written)
