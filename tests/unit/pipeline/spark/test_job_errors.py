"""What a Spark job died of comes out under its own class."""

from __future__ import annotations

import errno

import pytest

from oncehouse.errors import (
    CorruptFileError,
    DataLossError,
    FullDiskError,
    PermanentError,
    TransientError,
)
from oncehouse.pipeline.spark.job_errors import find_reason, rebuild_error, translated_errors

TRACE = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure
Traceback (most recent call last):
  File "worker.py", line 1, in main
{}

\tat org.apache.spark.api.python.BasePythonRunner"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("oncehouse.errors.CorruptFileError: segment x is damaged", CorruptFileError),
        ("oncehouse.errors.TransientError: no space left", TransientError),
        ("oncehouse.errors.FullDiskError: no space is left", FullDiskError),
        ("java.io.IOException: No space left on device", FullDiskError),
        ("OSError: [Errno 122] Disk quota exceeded", FullDiskError),
        ("java.lang.IllegalStateException: Some data may have been lost because", DataLossError),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: gone", PermanentError),
        ("ValueError: something else", TransientError),
        ("oncehouse.errors.NoSuchError: from another version", TransientError),
    ],
)
def test_an_error_keeps_its_class_on_the_way_from_a_worker(line, kind):
    assert type(rebuild_error("shop", TRACE.format(line))) is kind


def test_an_error_of_ours_keeps_its_words():
    text = TRACE.format("oncehouse.errors.CorruptFileError: segment x is damaged")
    assert str(rebuild_error("shop", text)) == "segment x is damaged"


def test_a_failure_without_any_text_may_pass():
    assert isinstance(rebuild_error("shop", ""), TransientError)


def test_a_full_disk_under_the_driver_itself_is_waited_for():
    with (
        pytest.raises(
            FullDiskError, match=r"Pipeline shop: no space is left where Spark writes.*free some space"
        ),
        translated_errors("shop"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_failures_of_files_stay_what_they_are():
    with pytest.raises(PermissionError), translated_errors("shop"):
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TRACE.format(""), "Job aborted due to stage failure"),
        (
            (
                f"{TRACE.format('')}\nCaused by: java.io.IOException: Failed to connect\n\tat a.b.C\n"
                "Caused by: io.netty.AbstractChannel$AnnotatedException: Connection refused: /127.0.0.1:7077\n\t... 7"
            ),
            "Connection refused: /127.0.0.1:7077",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
            "[JAVA_GATEWAY_EXITED] Java gateway process exited",
        ),
        ("", "no reason was given"),
    ],
)
def test_of_an_error_from_java_the_innermost_cause_is_told(text, reason):
    assert find_reason(text) == reason
