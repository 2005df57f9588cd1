"""Where the next step of a topic ends, looked up along with what a round reads anyway.

Only of topics whose latest step was cut by its size in this process: there the next range begins where that one
ended. A range that is cut again is the same whatever its source holds by now; any other guess is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.state.decision import DueStep
from oncehouse.etl.state.position import Position, Range

Find = Callable[[Topic, Position, Position], Range | None]
"""(topic, after which position, up to which) → its next range."""


@dataclass(frozen=True, kw_only=True)
class _Cut:
    topic: Topic
    last: Position
    upper: Position


class Lookahead:
    def __init__(self, find: Find) -> None:
        self._find = find
        self._cut: dict[str, _Cut] = {}
        self._pending: dict[str, tuple[_Cut, Future[Range | None]]] = {}

    def note(self, decision: DueStep, span: Range) -> None:
        """A step was done."""
        if span.is_cut:
            topic = decision.topic
            self._cut[topic.topic] = _Cut(topic=topic, last=span.next, upper=decision.upper)

    def ask(self, pool: Executor) -> None:
        """Begin to look, without waiting for it; once after each step."""
        cuts, self._cut = self._cut, {}
        self._pending = {
            name: (cut, pool.submit(self._find, cut.topic, cut.last, cut.upper)) for name, cut in cuts.items()
        }

    def take(self, decision: DueStep) -> Range | None:
        """The range of the step that was decided on, if it is known by now. Each is taken once."""
        cut, found = self._pending.pop(decision.topic.topic, (None, None))
        if cut is None or found is None or cut.last != decision.offset.last or cut.topic != decision.topic:
            return None
        if cut.upper > decision.upper or found.exception() is not None:
            return None
        span = found.result()
        return span if span is not None and span.is_cut else None
