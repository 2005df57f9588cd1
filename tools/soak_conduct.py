"""The course of a soak: start, kills under load, calm, drain, and the oracle.

It asks the schedule what to kill and does it, looks at every process, and tells how things stand. What goes wrong is a
problem of the story; only what makes going on senseless ends the run early.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from oncehouse.clickhouse.client import connect
from oncehouse.config.pipeline import ClickHouse
from oncehouse.errors import PermanentError
from soak_bounds import Phases
from soak_cast import STAGES, Cast
from soak_kills import DRIVER, SHARES, DriverState, Kill, Plan, Schedule
from soak_observe import Observer
from soak_oracle import Produced, compare, evaluate_ledger
from soak_report import KillNote, Story
from soak_stage import set_stage
from soak_traffic import PARTITIONS, TOPIC, Producing
from soak_watch import Watch

_TICK_SECONDS = 0.25
_SAMPLE_SECONDS = 2.0
_PRINT_SECONDS = 5.0
_FIRST_ROWS_SECONDS = 300.0
_BACK_SECONDS = 600.0
_DRAIN_SECONDS = 900.0
# A run in which the kills cannot be done in this many times the asked time has failed.
_LONGEST = 3.0
_SERVERS = {"broker": "kafka", "clickhouse": "clickhouse"}
# Epochs are at least this large while there is a backlog worth the name.
_DRY_RECORDS = 1_000
_MOST_DRY_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Asked:
    minutes: float
    kills: int
    driver_kills: int
    calm_minutes: float
    seed: int
    backlog: int
    epoch_rows: int


class Conductor:
    def __init__(
        self, asked: Asked, cast: Cast, story: Story, started: float, say: Callable[[str], None]
    ) -> None:
        self._asked = asked
        self._cast = cast
        self._story = story
        self._started = started
        self._say = say
        self._sampled_at = self._told_at = 0.0
        self.watch = Watch(cast, started)
        pipeline, self._files = set_stage(cast, epoch_rows=asked.epoch_rows)
        self._observer = Observer(pipeline, cast.stack.clickhouse.url, cast.folder, started)
        self._producing = Producing(
            cast.stack.kafka.bootstrap_servers,
            seed=asked.seed,
            backlog=asked.backlog,
            settled=lambda: self._observer.seen.settled,
        )
        self._killed_token = 0

    def close(self) -> None:
        self._observer.close()

    def perform(self) -> None:
        self._producing.start()
        self._cast.start_stages(self._files)
        self._say("waiting for the first rows")
        self._wait(lambda: self._observer.seen.rows > 0, _FIRST_ROWS_SECONDS, "rows in ClickHouse")
        begun, settled = self._now, self._observer.seen.settled
        self._kill_until_done(begun)
        killed_until = self._now
        self._story.minutes = (killed_until - begun) / 60
        self._say("no more kills: waiting for everybody to be back")
        self._wait(lambda: self._cast.is_whole and self._driver_state().epochs > 0, _BACK_SECONDS, "them")
        calm_from = self._now
        self._say("calm: full load without kills")
        self._go_on(self._asked.calm_minutes * 60)
        self._story.phases = Phases(
            kills_from=begun, kills_until=killed_until, calm_from=calm_from, calm_until=self._now
        )
        self._story.events_per_second = (self._observer.seen.settled - settled) / (self._now - begun)
        self._check_load(begun)
        self._drain()
        self._stop_stages()
        self._check_end()

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started

    def _kill_until_done(self, begun: float) -> None:
        plan = Plan(
            seconds=self._asked.minutes * 60,
            kills=self._asked.kills,
            driver_kills=self._asked.driver_kills,
        )
        schedule = Schedule(plan, self._asked.seed)
        while self._now - begun < plan.seconds or not schedule.is_done:
            self._tick()
            if self._now - begun > _LONGEST * plan.seconds + 60:
                others, drivers = schedule.left
                self._story.problems.append(f"{others} kills and {drivers} of the driver could not be done")
                return
            kill = schedule.next_kill(self._now - begun, self._present(), self._driver_state())
            if kill is not None and not self._do(kill, schedule):
                schedule.put_back(kill)

    def _present(self) -> set[str]:
        """Kinds of which somebody is alive and well."""
        found = {kind for kind, part in _SERVERS.items() if self._cast.server_pid(part)}
        found |= {kind for kind in (DRIVER, "loader") if self._cast.supervised[kind].pid}
        if self.watch.latest.get("executor"):
            found.add("executor")
        if self.watch.latest.get("python worker"):
            found.add("python worker")
        return found & {DRIVER, *SHARES}

    def _driver_state(self) -> DriverState:
        seen = self._observer.seen
        is_new = seen.token > self._killed_token
        return DriverState(epochs=seen.epochs_of_token if is_new else 0, last_epoch=seen.epochs)

    def _do(self, kill: Kill, schedule: Schedule) -> bool:
        seen = self._observer.seen
        pid = self._strike(kill, schedule)
        if pid is None:
            return False
        if kill.kind == DRIVER:
            self._killed_token = seen.token
        note = KillNote(
            seconds=round(self._now, 2),
            kind=kill.kind,
            part=kill.part,
            pid=pid,
            token=seen.token,
            epochs=seen.epochs_of_token,
        )
        self._story.kills.append(note)
        return True

    def _strike(self, kill: Kill, schedule: Schedule) -> int | None:
        """Kill, and say which process it was; None when it was gone already."""
        if kill.kind in (DRIVER, "loader"):
            one = self._cast.supervised[kill.kind]
            pid = one.pid
            return pid if one.kill(kill.part) else None
        if kill.kind in _SERVERS:
            return self._cast.kill_server(_SERVERS[kill.kind], schedule.down_seconds())
        pids = self.watch.pids("executor") if kill.kind == "executor" else self.watch.workers()
        if not pids:
            return None
        pid = schedule.choose(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return pid

    def _go_on(self, seconds: float) -> None:
        end = self._now + seconds
        while self._now < end:
            self._tick()

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = self._now + seconds
        while not condition():
            self._tick()
            if self._now > end:
                words = "\n".join(f"{one.kind}: {one.last_line()}" for one in self._cast.supervised.values())
                raise PermanentError(f"Waited {seconds:.0f} s in vain for {what}. Last words:\n{words}")

    def _tick(self) -> None:
        time.sleep(_TICK_SECONDS)
        if self._producing.failure is not None:
            raise PermanentError(f"The producer has failed: {self._producing.failure}")
        now = self._now
        if now - self._sampled_at >= _SAMPLE_SECONDS:
            self._sampled_at = now
            self.watch.sample()
            self._story.load_averages.append(os.getloadavg()[0])
            self._story.backlog.append((now, self._producing.kept - self._observer.seen.settled))
        if now - self._told_at >= _PRINT_SECONDS:
            self._told_at = now
            self._print_progress()

    def _print_progress(self) -> None:
        seen, latest = self._observer.seen, self.watch.latest
        kills = " ".join(f"{kind} {count}" for kind, count in self._story.kills_by_kind.items()) or "none"
        megabytes = sum(one.megabytes for found in latest.values() for one in found)
        files = sum(one.files for found in latest.values() for one in found)
        self._say(
            f"produced {self._producing.kept:,} ledger {seen.settled:,} rows {seen.rows:,} epochs {seen.epochs} "
            f"| kills: {kills} | {megabytes:,.0f} MB, {files:,} files"
        )

    def _check_load(self, begun: float) -> None:
        """At full load there is always something left to read."""
        backlog = [count for at, count in self._story.backlog if at >= begun]
        dry = sum(count < _DRY_RECORDS for count in backlog)
        self._story.dry_share = dry / max(1, len(backlog))
        if self._story.dry_share > _MOST_DRY_SHARE:
            self._story.problems.append(
                f"for {self._story.dry_share:.0%} of the time there was nothing to read: this was not full load"
            )

    def _drain(self) -> None:
        self._say("the producer stops; everything drains")
        self._producing.stop()
        if self._producing.failure is not None:
            raise PermanentError(f"The producer has failed: {self._producing.failure}")
        kept = self._producing.kept

        def is_drained() -> bool:
            seen = self._observer.seen
            return seen.settled >= kept and not seen.waiting and self._cast.is_whole

        with suppress(PermanentError):  # the oracle says what is missing
            self._wait(is_drained, _DRAIN_SECONDS, "everything to be in ClickHouse")

    def _stop_stages(self) -> None:
        self._say("stopping the stages")
        for kind in STAGES.values():
            one = self._cast.supervised[kind]
            if (code := one.stop()) != 0:
                self._story.problems.append(f"{kind} ended with exit {code} when it was asked to stop")
            if orphans := one.orphans():
                self._story.problems.append(
                    f"{kind}: something of {len(orphans)} killed sessions still lives"
                )
        self._story.ended = [ended for one in self._cast.supervised.values() for ended in one.ended]
        lasting = [one for one in self._story.ended if one.code not in (0, 75)]
        self._story.problems += [
            f"{one.kind} ended by itself with exit {one.code}: {one.last_line}" for one in lasting
        ]

    def _check_end(self) -> None:
        story, cast = self._story, self._cast
        self._say("comparing what arrived with what was sent")
        story.sizes = self._observer.sizes
        story.disk_gigabytes = self._observer.most_bytes / 1e9
        story.produced = Produced(
            records=_end_offsets(cast.stack.kafka.bootstrap_servers),
            unique=self._producing.unique,
            broken=self._producing.broken,
        )
        client = connect(ClickHouse(url=cast.stack.clickhouse.url))
        story.delivered = compare(client, story.produced.unique)
        story.problems += story.delivered.problems
        story.problems += evaluate_ledger(self._observer.catalog, story.produced)
        self._say("oncehouse verify --files")
        code, said = cast.run_to_end("verify", "--files", str(self._files["ingest"]))
        story.verified = code == 0
        if code:
            story.problems.append(f"verify ended with exit {code}: {said[-2000:]}")


def _end_offsets(servers: str) -> int:
    """How many records the topic has ever got: nothing here is transactional, so offsets have no holes."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    asked = {TopicPartition(TOPIC, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    return sum(found.result(30).offset for found in admin.list_offsets(asked).values())
