"""The pipeline on a standalone Spark cluster: one worker against two on this machine, and the driver at two sizes.

Catalog in PostgreSQL, files in an S3 API, executors of one core, each on a worker of its own. The same events are read
once with one executor and once with two; the machine's cores, which Kafka, ClickHouse and the driver share with the
executors, are told beside the ratio. The driver's profile runs two sizes in the same number of epochs: what its Python
and its Java used, how many calls its Python made, and how many bytes tasks told it. None of them may follow the rows.

    python benchmarks/cluster.py [--events N]
"""

from __future__ import annotations

import cProfile
import os
import pickle
import pstats
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from figures import Figure, figure, main, rate, say
from measure import (
    Place,
    Topic,
    create_table,
    fill_topic,
    make_pipeline,
    open_place,
    open_spark,
    require_exact,
)
from oncehouse.config.pipeline import BatchLimits, Epoch, Ledger, Pipeline, Spark
from oncehouse.ledger.catalog.epochs import list_epochs
from oncehouse.pipeline.checks.preflight import open_catalog
from oncehouse.pipeline.ingest import epoch
from oncehouse.pipeline.load import insert_task
from oncehouse.pipeline.run import run_pipeline
from oncehouse.pipeline.stages import kafka_stream
from processor_time import read_processor_seconds

EVENTS = 600_000
EPOCHS = 4
_SHOWN = 6
_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "768m",
}


@dataclass(frozen=True, kw_only=True)
class Driven:
    """What a run took, and what of it the driver did."""

    rows: int
    epochs: int
    seconds: float
    python_seconds: float
    java_seconds: float
    calls: dict[str, int]
    """Of oncehouse's own functions."""
    told_bytes: int
    """What tasks gave back: manifests, decisions, outcomes."""


class Told:
    """Counts the bytes that tasks give back to the driver."""

    def __init__(self) -> None:
        self.bytes = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            answer = call(*given)
            self.bytes += len(pickle.dumps(answer))
            return answer

        return counted

    @contextmanager
    def listening(self) -> Iterator[None]:
        places = ((kafka_stream, "read_dataframe"), (epoch, "run_tasks"), (insert_task, "run_tasks"))
        before = [(module, name, getattr(module, name)) for module, name in places]
        for module, name, call in before:
            setattr(module, name, self.around(call))
        try:
            yield
        finally:
            for module, name, call in before:
                setattr(module, name, call)


class Calls:
    """Profiles every thread that starts inside, and this one."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []

    def _begin(self, *_: object) -> None:
        profile = cProfile.Profile()
        self._profiles.append(profile)
        profile.enable()

    @contextmanager
    def counting(self) -> Iterator[None]:
        threading.setprofile(self._begin)
        own = cProfile.Profile()
        own.enable()
        try:
            yield
        finally:
            own.disable()
            threading.setprofile(None)
            self._profiles.append(own)

    def of_the_product(self) -> dict[str, int]:
        """Calls by function of oncehouse."""
        found: dict[str, int] = {}
        for profile in self._profiles:
            profile.create_stats()
            for (file, _, name), (_, calls, *_rest) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
                if "/oncehouse/" in file:
                    key = f"{file.rsplit('/oncehouse/', 1)[1]}:{name}"
                    found[key] = found.get(key, 0) + calls
        return found


def place_pipeline(place: Place, topic: Topic, name: str, *, executors: int) -> Pipeline:
    pipeline = make_pipeline(place, topic.name, name=name)
    stack = place.stack
    return pipeline.model_copy(
        update={
            "ledger": Ledger(catalog=_own_database(place, name), files=stack.s3.files(name)),
            # As many epochs and batches at each size, however long they take.
            "epoch": Epoch(max_rows=-(-topic.produced // EPOCHS), max_wait=0.2, max_seconds=3600),
            "batch": BatchLimits(max_wait=0.5, sizes="fixed"),
            "spark": Spark(
                master=stack.spark_master.url, settings=_SETTINGS | {"spark.cores.max": str(executors)}
            ),
        }
    )


def _own_database(place: Place, name: str) -> Any:
    import psycopg

    url = place.stack.postgres.url
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"{url.rsplit('/', 1)[0]}/{name}"


def drive(place: Place, topic: Topic, name: str, *, executors: int, profile: bool = False) -> Driven:
    """One run on a Spark of its own, warmed up by its look at the executors."""
    pipeline = place_pipeline(place, topic, name, executors=executors)
    create_table(place, pipeline)
    told, calls = Told(), Calls()
    with open_spark(pipeline) as spark, ExitStack() as at_end:
        at_end.enter_context(told.listening())
        if profile:
            at_end.enter_context(calls.counting())
        before, started = read_processor_seconds(place.stack), time.perf_counter()
        run_pipeline(pipeline, once=True, spark=spark)
        seconds, after = time.perf_counter() - started, read_processor_seconds(place.stack)
    require_exact(place.client, topic, table=name)
    driven = Driven(
        rows=topic.unique,
        epochs=_count_epochs(pipeline),
        seconds=seconds,
        python_seconds=after["driver"] - before["driver"],
        java_seconds=after["Spark JVM"] - before["Spark JVM"],
        calls=calls.of_the_product() if profile else {},
        told_bytes=told.bytes,
    )
    place.say(f"{topic.produced} events with {executors} executor(s): {seconds:.1f} s")
    return driven


def _count_epochs(pipeline: Pipeline) -> int:
    catalog = open_catalog(pipeline)
    try:
        return len(list_epochs(catalog))
    finally:
        catalog.close()


def measure(events: int = EVENTS) -> list[Figure]:
    with open_place(say) as place:
        say("starting PostgreSQL, an S3 API, a Spark master and two workers")
        place.stack.up(["postgres", "s3", "spark"])
        small, large = fill_topic(place, "small", events // 4), fill_topic(place, "large", events)
        drive(place, small, "warm", executors=2)
        profiles = [
            drive(place, topic, f"driven_{topic.name}", executors=2, profile=True) for topic in (small, large)
        ]
        one = drive(place, large, "one", executors=1)
        two = drive(place, large, "two", executors=2)
    return show(events, one, two, *profiles)


def show(events: int, one: Driven, two: Driven, small: Driven, large: Driven) -> list[Figure]:
    cores = os.cpu_count() or 1
    ratio = one.seconds / two.seconds
    print(f"one worker   {events / one.seconds:10.0f} events/s")
    print(f"two workers  {events / two.seconds:10.0f} events/s   ratio {ratio:.2f} on {cores} cores")
    print("(Kafka, ClickHouse, PostgreSQL, the S3 API and the driver share those cores)\n")
    print(f"{'the driver':32} {small.rows:>12} rows {large.rows:>12} rows   ratio")
    for name, values in {
        "epochs": (float(small.epochs), float(large.epochs)),
        "Python, processor seconds": (small.python_seconds, large.python_seconds),
        "Java, processor seconds": (small.java_seconds, large.java_seconds),
        "calls of its own functions": tuple(float(sum(run.calls.values())) for run in (small, large)),
        "bytes that tasks told it": (float(small.told_bytes), float(large.told_bytes)),
    }.items():
        print(f"{name:32} {values[0]:>17.2f} {values[1]:>17.2f}   {values[1] / max(values[0], 0.01):.2f}")
    print(
        f"\nfunctions with the most calls more, in a run of {large.seconds:.0f} s in place of {small.seconds:.0f} s:"
    )
    for name in sorted(large.calls, key=lambda name: small.calls.get(name, 0) - large.calls[name])[:_SHOWN]:
        print(f"{name:56} {small.calls.get(name, 0):>8} {large.calls[name]:>8}")
    return [
        rate("cluster_one_worker_events_per_second", events, one.seconds),
        rate("cluster_two_workers_events_per_second", events, two.seconds),
        figure("cluster_two_workers_ratio", ratio, f"times, {cores} cores"),
        figure(
            "cluster_driver_bytes_ratio_at_four_times_the_rows", *_grown(small.told_bytes, large.told_bytes)
        ),
        figure(
            "cluster_driver_python_seconds_ratio_at_four_times_the_rows",
            *_grown(small.python_seconds, large.python_seconds),
        ),
    ]


def _grown(small: float, large: float) -> tuple[float, str]:
    return large / max(small, 0.01), "times"


if __name__ == "__main__":
    main(
        measure,
        described=__doc__,
        asked="events",
        default=EVENTS,
        help_="how many events the larger size has",
    )
