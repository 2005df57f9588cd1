"""What a person may do in the dashboard: asked about first, then done by the same functions as at the command line."""

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
    from oncehouse.monitoring.monitor import Lookout

Asked = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Deed:
    question: str
    explains: str
    """What happens then, and what does not."""
    button: str
    back: str
    """Where a person goes afterwards, whether it was done or not."""
    do: Callable[[], str]
    """Does it, and says what was done."""


class Deeds:
    """Each method looks at what is asked for and raises ConfigurationError where it cannot be done at all."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout

    def retry_batch(self, asked: Asked) -> Deed:
        name, batch_id = asked["name"], asked["batch"]
        batch = self._lookout.batch(name, batch_id).view.batch

        def do() -> str:
            with self._lookout.open(name) as catalog:
                actions.retry_batch(catalog, batch_id)
            return (
                f"Batch {batch_id} will be tried again, by a running pipeline at once, else by the next run."
            )

        return Deed(
            question=f"Try this batch of {batch.table} again?",
            explains=f"{batch.rows:,} rows of batch {batch_id} are sent as they are, under the token that they always "
            "had: if they are in the table already, they stay there once.",
            button="Try again",
            back=f"/pipelines/{name}/batches/{quote(batch_id, safe='')}",
            do=do,
        )

    def replay_letters(self, asked: Asked) -> Deed:
        name, reason = asked["name"], asked.get("reason") or None
        counts = self._lookout.road(name).overview.dead_letters
        actions.demand_reason(reason, counts)
        number = counts.get(reason, 0) if reason else sum(counts.values())
        if not number:
            raise ConfigurationError("There are no dead letters to try again.")

        def do() -> str:
            with self._lookout.open(name) as catalog:
                request = actions.request_replay(catalog, choose_reason(reason))
            return f"Request {request} is in the ledger; a running pipeline performs it, else the next run."

        which = f"of the reason {reason}" if reason else "of every reason"
        return Deed(
            question=f"Replay {number:,} dead letters {which}?",
            explains="They are decoded again with the pipeline file as it is now. What fits becomes rows, in its "
            "original position; what does not stays a dead letter.",
            button="Replay",
            back=f"/pipelines/{name}/letters",
            do=do,
        )

    def refill_table(self, asked: Asked) -> Deed:
        name, table = asked["name"], asked["table"]
        pipeline = self._lookout.pipeline(name)
        actions.demand_table(pipeline, table)

        def do() -> str:
            with self._lookout.open(name) as catalog:
                request = actions.request_refill(pipeline, catalog, table)
            return f"Request {request} is in the ledger; a running pipeline performs it, else the next run."

        return Deed(
            question=f"Fill {table} again from the ledger?",
            explains="All rows that the ledger keeps for this table are sent once more, in new batches. Meant for a "
            "table that is new or was emptied: rows that are still there would stand twice.",
            button="Replay into the table",
            back=f"/pipelines/{name}",
            do=do,
        )

    def pause_topic(self, asked: Asked) -> Deed:
        return self._topic(
            asked,
            "Pause {topic}?",
            "No further step of it is begun; one that is under way is brought to its end. Topics that read its table "
            "wait with it.",
            "Pause",
            actions.pause_topic,
            "{topic} is paused.",
        )

    def resume_topic(self, asked: Asked) -> Deed:
        return self._topic(
            asked,
            "Let {topic} go on?",
            "Its next step begins as soon as there is something to do. Late rows that had stopped it are let pass: "
            "they stay counted, and are not built.",
            "Resume",
            actions.resume_topic,
            "{topic} goes on.",
        )

    def unlock_topic(self, asked: Asked) -> Deed:
        return self._topic(
            asked,
            "Free {topic} from whoever holds it?",
            "For a host that is surely gone. Its open range stays and runs again unchanged. A host that still works "
            "on it loses the topic, and what it writes afterwards is refused.",
            "Unlock",
            actions.unlock_topic,
            "{topic} is free.",
        )

    def _topic(
        self,
        asked: Asked,
        question: str,
        explains: str,
        button: str,
        change: Callable[[Any, str], object],
        told: str,
    ) -> Deed:
        topic = asked["topic"]
        self._lookout.demand_topic(topic)

        def do() -> str:
            with self._lookout.open_etl() as etl:
                change(etl, topic)
            self._lookout.forget_etl()
            return told.format(topic=topic)

        return Deed(
            question=question.format(topic=topic), explains=explains, button=button, back="/etl", do=do
        )

    def retry_message(self, asked: Asked) -> Deed:
        try:
            message_id = UUID(asked["message"])
        except ValueError:
            raise ConfigurationError(f"{asked['message']!a} is not the id of a message") from None

        def do() -> str:
            with self._lookout.open_outbox() as outbox:
                moved = actions.retry_message(outbox, message_id)
            return f"Let go: {moved.messages:,} message, and {moved.freed:,} that waited behind it."

        return Deed(
            question="Send this message again?",
            explains=f"Message {message_id} goes to Kafka, and behind it all later ones of its key, in their order.",
            button="Try again",
            back="/outbox",
            do=do,
        )

    def retry_inbox(self, asked: Asked) -> Deed:
        name = asked["inbox"]
        found = next((one for one in self._lookout.inboxes().inboxes if one.inbox == name), None)
        if found is None:
            raise ConfigurationError(f"No stored inbox {name!a} has a message")

        def do() -> str:
            with self._lookout.open_inboxes() as opened:
                changed = actions.retry_inbox(opened, name)
            return f"{len(changed):,} messages of {name} will be tried again by the workers."

        return Deed(
            question=f"Try what failed in the inbox {name} again?",
            explains=f"{found.parked:,} parked and {found.failing:,} failing messages are handled at once, in their "
            "old places and as if for the first time. What a handler has committed is not done twice.",
            button="Try again",
            back="/consumers",
            do=do,
        )
