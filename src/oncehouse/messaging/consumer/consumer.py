"""The public consumer: handlers are declared with `@consumer.batch`, then `run`, `run_async` or, in tests,
`run_until_idle`.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any, Literal, TypeVar

from pydantic import SecretStr

from oncehouse.common.backoff import Backoff
from oncehouse.config.field_types import check_servers, check_topic, parse_duration, parse_size
from oncehouse.errors import ConfigurationError
from oncehouse.messaging.clock import Clock, ManualClock, SystemClock
from oncehouse.messaging.consumer.batch import Batch
from oncehouse.messaging.consumer.client import BrokerClient
from oncehouse.messaging.consumer.handler_rules import DEFAULT_BACKOFF, HandlerRules, Isolation, Subscription
from oncehouse.messaging.consumer.health import Health, HealthFile
from oncehouse.messaging.consumer.memory_broker import MemoryBroker
from oncehouse.messaging.consumer.metrics import GuardedMetrics, Metrics, NoMetrics
from oncehouse.messaging.consumer.partition_tasks import Executor, InlineExecutor
from oncehouse.messaging.consumer.process_workers import ProcessWorkers
from oncehouse.messaging.consumer.runner import ConsumerRunner, ShutdownLimits
from oncehouse.messaging.consumer.time_report import TimeReport
from oncehouse.messaging.consumer.workers import (
    HandlerJob,
    LoopWorkers,
    ThreadExecutor,
    ThreadWorkers,
    Workers,
)
from oncehouse.messaging.failure_policy import FailurePolicy

Handler = TypeVar("Handler", bound=Callable[[Batch], Any])


class Consumer:
    def __init__(
        self,
        *,
        group: str,
        bootstrap_servers: str | None = None,
        options: Mapping[str, str | SecretStr] | None = None,
        broker: MemoryBroker | None = None,
        metrics: Metrics | None = None,
        health_file: Path | str | None = None,
        drain: str | float = 30.0,
        revoke: str | float = 10.0,
    ) -> None:
        """`bootstrap_servers` with `options` as librdkafka names them, or a `broker` in memory.

        `drain` and `revoke` bound how long a stop and a rebalance wait for handlers.
        """
        if (bootstrap_servers is None) == (broker is None):
            raise ConfigurationError("a Consumer needs bootstrap_servers, or a broker in memory for tests")
        if not group:
            raise ConfigurationError("a Consumer needs a group name")
        if bootstrap_servers is not None:
            _check("bootstrap_servers", check_servers, bootstrap_servers)
        self.group = group
        self._bootstrap_servers = bootstrap_servers
        self._options = dict(options or {})
        self._broker = broker
        self._clock: Clock = SystemClock() if broker is None else broker.clock
        self._metrics: Metrics = NoMetrics() if metrics is None else GuardedMetrics(metrics)
        self._health_file = None if health_file is None else HealthFile(Path(health_file))
        self._shutdown_limits = ShutdownLimits(
            drain_seconds=_seconds("drain", drain), revoke_seconds=_seconds("revoke", revoke)
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._runner: ConsumerRunner | None = None
        self._stop_requested = False

    def batch(
        self,
        topic: str,
        *,
        size: int = 5_000,
        bytes: str | int = "16MB",  # noqa: A002 - the word that users look for
        wait: str | float = 1.0,
        order: Literal["partition"] = "partition",
        concurrency: int = 8,
        retries: FailurePolicy | None = None,
        attempts: int = 3,
        backoff: Backoff = DEFAULT_BACKOFF,
        isolation: Isolation = "thread",
        stuck: str | float = 300.0,
        adaptive: bool = False,
        target: str | float = 1.0,
    ) -> Callable[[Handler], Handler]:
        """Declare the handler of a topic, plain or `async def`; it gets one Batch at a time of a partition.

        `size`, `bytes` and `wait` close a batch, whichever comes first. `concurrency` partitions are handled at the
        same time. A failing batch is tried `attempts` times with `backoff` between; then it is bisected to the one
        record that fails, which goes to `retries` (without them it is tried until it passes). `isolation="process"`
        runs the handler in separate processes. A handler that runs longer than `stuck` is reported. With `adaptive`,
        size and wait follow the handler, which should run for about `target`.
        """
        _check("topic", check_topic, topic)
        rules = HandlerRules(
            topic=topic,
            size=_positive("size", size),
            max_bytes=_positive("bytes", _check("bytes", parse_size, bytes)),
            wait_seconds=_seconds("wait", wait),
            concurrency=_positive("concurrency", concurrency),
            attempts=_positive("attempts", attempts),
            backoff=backoff,
            diverts=retries is not None,
            stuck_seconds=_seconds("stuck", stuck),
            adaptive=adaptive,
            target_seconds=_seconds("target", target),
        )
        if order != "partition":
            raise ConfigurationError(
                f"order: {order!r} is not known; batches are in the order of their partition"
            )
        if isolation not in {"thread", "process"}:
            raise ConfigurationError(f"isolation: {isolation!r} is not known; write 'thread' or 'process'")
        if isinstance(retries, type) or (retries is not None and not hasattr(retries, "open")):
            raise ConfigurationError("retries: give RetryTopics(delays=[…]), DeadLetterTopic() or nothing")
        if topic in self._subscriptions:
            raise ConfigurationError(f"topic {topic} has a handler already; a topic has one in a consumer")

        def declare(handler: Handler) -> Handler:
            _check_handler(handler, topic)
            is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
                getattr(handler, "__call__", None)  # noqa: B004 - an object may have an async __call__
            )
            if is_async and isolation == "process":
                raise ConfigurationError(
                    f"topic {topic}: isolation='process' takes plain handlers, not async ones"
                )
            self._subscriptions[topic] = Subscription(
                rules=rules, handler=handler, is_async=is_async, isolation=isolation, policy=retries
            )
            return handler

        return declare

    def run(self) -> None:
        """Consume until `stop`, SIGTERM or SIGINT; a second signal has its default effect."""
        runner = self._make_runner(ThreadExecutor("oncehouse-handler"), None)
        with self._signals():
            runner.run()

    async def run_async(self) -> None:
        """Consume until `stop` or cancellation. Async handlers run in the caller's loop, everything else in threads."""
        loop = asyncio.get_running_loop()
        runner = self._make_runner(ThreadExecutor("oncehouse-handler"), loop)
        ended = loop.create_future()

        def poll() -> None:
            error: BaseException | None = None
            try:
                runner.run()
            except BaseException as raised:  # noqa: BLE001 - raised where `run_async` waits
                error = raised
            loop.call_soon_threadsafe(_resolve, ended, error)

        Thread(target=poll, name="oncehouse-poll", daemon=True).start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await ended
            raise

    def stop(self) -> None:
        """Request a stop, from any thread; `run` returns once running handlers have ended or the drain time is over."""
        if self._runner is None:
            self._stop_requested = True
        else:
            self._runner.stop()

    def run_until_idle(self, *, for_seconds: float = 3600.0) -> None:
        """For tests with a broker in memory: no threads; waits advance the broker's ManualClock instead.

        Returns once all records are handled and committed, or after so many seconds of that clock.
        """
        if not isinstance(self._clock, ManualClock):
            raise ConfigurationError("run_until_idle needs a MemoryBroker with a ManualClock")
        executor = InlineExecutor()
        runner = self._make_runner(executor, None)
        runner.open()
        try:
            _run_until_idle(runner, executor, self._clock, self._clock.monotonic() + for_seconds)
        finally:
            runner.finish()

    def report(self) -> TimeReport:
        """Where the time went since the start of the last run."""
        return self._started().report()

    def health(self) -> Health:
        """The content of the health file, as of now."""
        return self._started().health()

    def _started(self) -> ConsumerRunner:
        if self._runner is None:
            raise ConfigurationError("the consumer has not been started yet")
        return self._runner

    def _make_runner(self, executor: Executor, loop: asyncio.AbstractEventLoop | None) -> ConsumerRunner:
        if not self._subscriptions:
            raise ConfigurationError("the consumer has no handlers; declare one with @consumer.batch(topic)")
        subscriptions = list(self._subscriptions.values())
        self._runner = ConsumerRunner(
            group=self.group,
            client=self._make_client(),
            subscriptions=subscriptions,
            workers=_make_workers(subscriptions, executor, loop),
            executor=executor,
            clock=self._clock,
            metrics=self._metrics,
            shutdown_limits=self._shutdown_limits,
            health_file=self._health_file,
        )
        if self._stop_requested:
            self._runner.stop()
        self._stop_requested = False
        return self._runner

    def _make_client(self) -> BrokerClient:
        if self._broker is not None:
            return self._broker.client(self.group)
        from oncehouse.messaging.consumer.kafka_client import KafkaClient

        assert self._bootstrap_servers is not None  # noqa: S101 - the constructor asks for one of the two
        return KafkaClient(
            bootstrap_servers=self._bootstrap_servers,
            group=self.group,
            options=self._options,
            metrics=self._metrics,
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Python allows signal handlers only in the main thread; other threads are stopped by stop().
        if current_thread() is not main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def ask(_number: int, _frame: object) -> None:
            self.stop()
            for number, handler in before.items():
                signal.signal(number, handler)

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _run_until_idle(
    runner: ConsumerRunner, executor: InlineExecutor, clock: ManualClock, deadline: float
) -> None:
    while not runner.stop_requested:
        before = runner.activity
        runner.step()
        while executor.run_one():
            pass
        if runner.activity != before:
            continue
        wake_at = runner.state_machine.wake_at(clock.monotonic())
        if wake_at > deadline:
            return
        clock.advance(wake_at - clock.monotonic())


def _make_workers(
    subscriptions: list[Subscription], executor: Executor, loop: asyncio.AbstractEventLoop | None
) -> dict[str, Workers]:
    return {
        subscription.rules.topic: _workers_for(subscription, executor, loop) for subscription in subscriptions
    }


def _workers_for(
    subscription: Subscription, executor: Executor, loop: asyncio.AbstractEventLoop | None
) -> Workers:
    if subscription.is_async:
        return _InlineLoop(executor) if isinstance(executor, InlineExecutor) else LoopWorkers(loop)
    if subscription.isolation == "process":
        return ProcessWorkers(executor=executor)
    return ThreadWorkers(executor)


class _InlineLoop(ThreadWorkers):
    """Async handlers one at a time, each in its own event loop."""

    def start(self, job: HandlerJob) -> None:
        handler = job.handler
        job.handler = lambda batch: asyncio.run(handler(batch))
        super().start(job)


def _resolve(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def _check(name: str, parse: Callable[[Any], Any], value: object) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _check_handler(handler: Handler, topic: str) -> None:
    """A handler that cannot be called would make a dead letter of every record."""
    if not callable(handler):
        raise ConfigurationError(f"topic {topic}: {handler!r} is not a handler; give a function of one batch")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        raise ConfigurationError(f"topic {topic}: the handler must accept one batch: {error}") from None
    except ValueError:
        return  # written in C, without a signature


def _positive(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name}: {value!r} is not a whole number from 1")
    return value


def _seconds(name: str, value: str | float) -> float:
    seconds = _check(name, parse_duration, value)
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise ConfigurationError(
            f"{name}: {value!r} is not a duration; write seconds, or text such as '500ms'"
        )
    return float(seconds)
