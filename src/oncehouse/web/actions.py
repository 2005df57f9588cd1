"""The actions of the dashboard: confirmed by the user first, then performed by the functions that the CLI calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

from oncehouse.errors import ConfigurationError
from oncehouse.monitoring import actions
from oncehouse.monitoring.dead_letters import choose_reason

if TYPE_CHECKING:
    from oncehouse.monitoring.monitor import Monitor

RequestParams = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Action:
    question: str
    explains: str
    """The effect of the action, and what it leaves unchanged."""
    button: str
    back: str
    """The page to return to, whether the action was performed or not."""
    do: Callable[[], str]
    """Performs the action and returns a message about it."""


class Actions:
    """Each method checks the request and raises ConfigurationError if the action is impossible."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def retry_batch(self, params: RequestParams) -> Action:
        name, batch_id = params["name"], params["batch"]
        batch = self._monitor.batch(name, batch_id).view.batch

        def do() -> str:
            with self._monitor.open(name) as catalog:
                actions.retry_batch(catalog, batch_id)
            return f"Batch {batch_id} will be retried at once by a running pipeline, or else by the next run."

        return Action(
            question=f"Retry this batch of {batch.table}?",
            explains=f"The {batch.rows:,} rows of batch {batch_id} are sent unchanged, with the same deduplication "
            "token: rows that are already in the table are not inserted twice.",
            button="Retry",
            back=f"/pipelines/{name}/batches/{quote(batch_id, safe='')}",
            do=do,
        )

    def replay_dead_letters(self, params: RequestParams) -> Action:
        name, reason = params["name"], params.get("reason") or None
        counts = self._monitor.activity(name).overview.dead_letters
        actions.require_reason(reason, counts)
        number = counts.get(reason, 0) if reason else sum(counts.values())
        if not number:
            raise ConfigurationError("There are no dead letters to replay.")

        def do() -> str:
            with self._monitor.open(name) as catalog:
                request = actions.request_replay(catalog, choose_reason(reason))
            return (
                f"Request {request} is in the ledger; a running pipeline performs it, or else the next run."
            )

        which = f"with the reason {reason}" if reason else "of all reasons"
        return Action(
            question=f"Replay {number:,} dead letters {which}?",
            explains="They are decoded again with the current pipeline file. Records that are now valid become "
            "rows in their original position; the others stay dead letters.",
            button="Replay",
            back=f"/pipelines/{name}/letters",
            do=do,
        )

    def refill_table(self, params: RequestParams) -> Action:
        name, table = params["name"], params["table"]
        pipeline = self._monitor.pipeline(name)
        actions.require_table(pipeline, table)

        def do() -> str:
            with self._monitor.open(name) as catalog:
                request = actions.request_refill(pipeline, catalog, table)
            return (
                f"Request {request} is in the ledger; a running pipeline performs it, or else the next run."
            )

        return Action(
            question=f"Refill {table} from the ledger?",
            explains="All rows that the ledger keeps for this table are sent again, in new batches. Use this for a "
            "new or truncated table only: rows that are still in the table would be duplicated.",
            button="Replay into the table",
            back=f"/pipelines/{name}",
            do=do,
        )

    def pause_topic(self, params: RequestParams) -> Action:
        return self._topic(
            params,
            "Pause {topic}?",
            "No further step of the topic starts; a running step finishes. Topics that read its table wait too.",
            "Pause",
            actions.pause_topic,
            "{topic} is paused.",
        )

    def resume_topic(self, params: RequestParams) -> Action:
        return self._topic(
            params,
            "Resume {topic}?",
            "Its next step starts as soon as there is work. If late rows had stopped the topic, they are skipped: "
            "they are counted but not built.",
            "Resume",
            actions.resume_topic,
            "{topic} is resumed.",
        )

    def unlock_topic(self, params: RequestParams) -> Action:
        return self._topic(
            params,
            "Release the lock on {topic}?",
            "Use this only if the host that holds the topic is gone. Its open range is kept and runs again "
            "unchanged. If the host is still running, it loses the topic and its later writes are refused.",
            "Unlock",
            actions.unlock_topic,
            "{topic} is unlocked.",
        )

    def _topic(
        self,
        params: RequestParams,
        question: str,
        explains: str,
        button: str,
        change: Callable[[Any, str], object],
        message: str,
    ) -> Action:
        topic = params["topic"]
        self._monitor.require_topic(topic)

        def do() -> str:
            with self._monitor.open_etl() as etl:
                change(etl, topic)
            self._monitor.forget_etl()
            return message.format(topic=topic)

        return Action(
            question=question.format(topic=topic), explains=explains, button=button, back="/etl", do=do
        )

    def retry_message(self, params: RequestParams) -> Action:
        try:
            message_id = UUID(params["message"])
        except ValueError:
            raise ConfigurationError(f"{params['message']!a} is not the id of a message") from None

        def do() -> str:
            with self._monitor.open_outbox() as outbox:
                moved = actions.retry_message(outbox, message_id)
            return f"Released {moved.messages:,} message and {moved.freed:,} that waited behind it."

        return Action(
            question="Retry this message?",
            explains=f"Message {message_id} is sent to Kafka, followed by all later messages of its key in order.",
            button="Retry",
            back="/outbox",
            do=do,
        )

    def retry_inbox(self, params: RequestParams) -> Action:
        name = params["inbox"]
        found = next((one for one in self._monitor.inboxes().inboxes if one.inbox == name), None)
        if found is None:
            raise ConfigurationError(f"No stored inbox {name!a} has a message")

        def do() -> str:
            with self._monitor.open_inboxes() as opened:
                changed = actions.retry_inbox(opened, name)
            return f"The workers will retry {len(changed):,} messages of {name}."

        return Action(
            question=f"Retry the failed messages of inbox {name}?",
            explains=f"{found.parked:,} parked and {found.failing:,} failing messages are handled at once, in their "
            "original order and with a new retry count. Effects that a handler has committed are not repeated.",
            button="Retry",
            back="/consumers",
            do=do,
        )
