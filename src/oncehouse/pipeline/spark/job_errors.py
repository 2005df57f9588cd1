"""Errors of Spark jobs, given back as what they were where they were raised.

Spark ships only the text of an error from a worker to the driver. An error of ours is found in that text and
raised again under its own class, so that a damaged file stops the pipeline and a full disk is waited for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from oncehouse import errors
from oncehouse.errors import (
    ConfigurationError,
    DataLossError,
    FullDiskError,
    OncehouseError,
    PermanentError,
    TransientError,
)
from oncehouse.ledger.storage.file_store import NO_SPACE

_OURS = re.compile(r"\boncehouse\.errors\.(\w+Error): (.+)")


# How Spark's Kafka source says that records are gone.
_LOST = ("failOnDataLoss", "data loss", "Some data may have been lost", "OffsetOutOfRange", "KAFKA_DATA_LOSS")
# How Java and Python say that a disk, or a user's share of it, is full.
_FULL = ("No space left on device", "Disk quota exceeded")


@contextmanager
def translated_errors(pipeline: str) -> Iterator[None]:
    """Around a Spark job: whatever ends it comes out as an error of ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise rebuild_error(pipeline, str(error)) from error
    except OSError as error:
        # PySpark puts what it hands to Java into files of its own.
        if error.errno in NO_SPACE:
            raise rebuild_error(pipeline, str(error)) from error
        raise


def rebuild_error(pipeline: str, text: str) -> OncehouseError:
    """The error of ours that a job's text names, or what Spark's own words mean; anything else may pass."""
    found = _OURS.search(text)
    kind = getattr(errors, found[1], None) if found else None
    if found and isinstance(kind, type) and issubclass(kind, OncehouseError):
        return kind(found[2].strip())
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")
    if any(word in text for word in _LOST):
        return DataLossError(
            f"Pipeline {pipeline}: Kafka no longer has records that the ledger has not read: {first} Nothing was "
            "skipped. Restore them from elsewhere, or start the pipeline under a new name and ledger."
        )
    if is_full(text):
        return FullDiskError(
            f"Pipeline {pipeline}: no space is left where Spark writes: its checkpoint in the folder of ledger.files "
            "(for a bucket, and for Spark's own files, spark.local.dir or the folder for temporary files). Nothing is "
            "lost: free some space there, and the pipeline goes on from where the ledger ends."
        )
    if "Failed to find data source: kafka" in text or "DATA_SOURCE_NOT_FOUND" in text:
        return ConfigurationError(
            f"Pipeline {pipeline}: Spark has no Kafka connector. Let spark.settings name it, by `spark.jars` or "
            "`spark.jars.packages`, or leave both out so that oncehouse brings its own."
        )
    if "UnknownTopicOrPartition" in text:
        return PermanentError(f"Pipeline {pipeline}: a topic has gone while it was read: {first}")
    return TransientError(f"Pipeline {pipeline}: a Spark job failed: {first}")


def find_reason(text: str) -> str:
    """The one line of an error from Java that says why: its innermost cause, without names of classes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if not causes:
        # PySpark names the call first, and gives the message of Java after a colon.
        causes = [line for line in lines if line.startswith(": ")] or lines[:1] or ["no reason was given"]
    cause = re.sub(r"^(Caused by)?: ", "", causes[-1])
    return re.sub(r"^(?:[\w$]+\.)+([\w$]+): ", "", cause).rstrip(".")


def is_full(text: str) -> bool:
    return any(words in text for words in _FULL)
