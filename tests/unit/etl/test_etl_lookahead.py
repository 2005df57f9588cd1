"""Ranges that are looked up ahead: used when they are what the step would find itself, and never else."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace

import pytest

from oncehouse.errors import TransientError
from oncehouse.etl.lineage.topic import Topic
from oncehouse.etl.scheduler.lookahead import Lookahead
from oncehouse.etl.state.decision import DueStep
from oncehouse.etl.state.position import START, Position, Range
from oncehouse.etl.state.topic_lease import new_offset

TOPIC = Topic(topic="Fact", dst="dwh.fact", depends_on=("stage.main",), maxstep_rows=10)
DONE = Range(last=START, next=Position(time_ms=10, id=1), rows=10, is_cut=True)
NEXT = Range(last=DONE.next, next=Position(time_ms=20, id=1), rows=10, is_cut=True)
BEFORE = DueStep(topic=TOPIC, offset=new_offset("Fact"), upper_ms=100)
AFTER = replace(BEFORE, offset=replace(BEFORE.offset, last=DONE.next, next=DONE.next))


class AtOnce(Executor):
    def submit(self, call, /, *arguments, **named):
        future: Future = Future()
        try:
            future.set_result(call(*arguments, **named))
        except TransientError as error:
            future.set_exception(error)
        return future


def look(found: Range | Exception | None, span: Range = DONE) -> Lookahead:
    """After a step with that range."""

    def find(topic: Topic, last: Position, upper: Position) -> Range | None:
        assert (topic, last, upper) == (TOPIC, DONE.next, BEFORE.upper)
        if isinstance(found, Exception):
            raise found
        return found

    ahead = Lookahead(find)
    ahead.note(BEFORE, span)
    ahead.ask(AtOnce())
    return ahead


def test_the_range_after_a_cut_one_is_known_once():
    ahead = look(NEXT)
    assert ahead.take(AFTER) == NEXT
    assert ahead.take(AFTER) is None


def test_a_topic_that_does_not_go_on_is_not_asked_about_again():
    ahead, asked = look(NEXT), AtOnce()
    asked.submit = lambda *_arguments: pytest.fail("asked again")
    ahead.ask(asked)
    assert ahead.take(AFTER) is None


@pytest.mark.parametrize(
    ("ahead", "decision"),
    [
        pytest.param(look(NEXT), BEFORE, id="somebody has moved the topic"),
        pytest.param(look(NEXT), replace(AFTER, upper_ms=99), id="its slowest source has gone back"),
        pytest.param(look(NEXT), replace(AFTER, topic=replace(TOPIC, maxstep_rows=5)), id="smaller steps"),
        pytest.param(look(replace(NEXT, is_cut=False)), AFTER, id="by now there may be more rows in reach"),
        pytest.param(look(None), AFTER, id="by now there may be rows"),
        pytest.param(look(TransientError("away")), AFTER, id="it could not be looked up"),
        pytest.param(look(NEXT, replace(DONE, is_cut=False)), AFTER, id="the step took all there was"),
    ],
)
def test_any_other_guess_is_dropped(ahead, decision):
    assert ahead.take(decision) is None
