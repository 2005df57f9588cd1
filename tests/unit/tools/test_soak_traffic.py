"""Events of the soak: made from their serial number alone, with a hash that anybody can compute again."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest

import soak_modules  # noqa: F401 - makes the next ones importable
from demo_events import broken_messages, draw_serials, encode_columns
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from soak_traffic import FIELDS, PRODUCERS, make_events
from soak_watch import classify

DAEMON = "oncehouse.pipeline.spark.worker_daemon"


def test_an_event_says_who_sent_it_its_number_and_the_hash_of_its_payload():
    for serial in (0, 1, 7, 123_456_789):
        (message,) = encode_columns(make_events(np.array([serial])))
        event = json.loads(message)
        assert list(event) == list(FIELDS)
        assert (event["producer"], event["sequence"]) == (
            f"producer-{serial % PRODUCERS}",
            serial // PRODUCERS,
        )
        assert event["payload_hash"] == hashlib.sha256(event["payload"].encode()).hexdigest()[:16]


def test_no_two_events_share_a_payload():
    assert len(set(make_events(np.arange(50_000))["payload"].to_pylist())) == 50_000


def test_every_broken_message_is_refused_by_the_pipeline_of_the_soak():
    types = {name: parse_type(text) for name, text in FIELDS.items()}
    decoder = JsonDecoder(fields=types, max_message_bytes=1 << 20, max_depth=64)
    assert len(decoder.decode(pa.array(broken_messages(37), pa.binary())).rejected) == 37


def test_blocks_drawn_one_after_the_other_leave_out_no_serial_number():
    rng = np.random.default_rng(1)
    blocks, known = [], 0
    for _ in range(5):
        blocks.append(draw_serials(rng, 1000, sent_before=known))
        known = int(np.concatenate(blocks).max()) + 1
    sent = np.concatenate(blocks)
    assert np.array_equal(np.unique(sent), np.arange(known))
    assert 0.05 < 1 - known / len(sent) < 0.12
    assert (blocks[-1] < blocks[0].max()).any()


@pytest.mark.parametrize(
    ("words", "root", "kind"),
    [
        (["/usr/bin/java", "org.apache.spark.executor.CoarseGrainedExecutorBackend"], "spark worker", "executor"),
        (["python", "-m", DAEMON, "pyspark.worker"], "spark worker", "python worker"),
        (["python", "-m", DAEMON, "pyspark.worker"], "retention", "python worker"),
        (["java", "org.apache.spark.deploy.SparkSubmit", f"x.daemon.module={DAEMON}"], "driver", "driver java"),
        (["java", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"], "driver", None),
        (["bash", "spark-class", "org.apache.spark.deploy.SparkSubmit"], "driver", None),
        ([], "loader", None),
    ],
)  # fmt: skip
def test_a_process_is_told_by_its_command_line(words, root, kind):
    assert classify(words, root) == kind
