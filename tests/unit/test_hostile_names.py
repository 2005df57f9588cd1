"""Every place of a pipeline file that takes a name, tried with every name that somebody could try."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from hostile_names import ALL, QUOTABLE, REFUSED
from oncehouse.cli.output import visible
from oncehouse.clickhouse.identifiers import quote, quote_table
from oncehouse.config.file_loader import parse_pipeline
from oncehouse.config.pipeline import Pipeline
from oncehouse.errors import ConfigurationError
from oncehouse.etl.settings import EtlSettings


def document(**sections) -> dict:
    whole = {
        "pipeline": "shop",
        "source": {"kafka": {"bootstrap_servers": "a:1", "topics": ["events"]}, "fields": {"id": "UInt64"}},
        "identity": {"fields": ["id"]},
        "tables": [{"name": "events"}],
        "clickhouse": {"url": "http://h:1"},
        "ledger": {"catalog": "sqlite:///c.db", "files": "files"},
    }
    return whole | sections


KAFKA = {"bootstrap_servers": "a:1", "topics": ["events"]}
MAKE = {
    "pipeline": lambda name: {"pipeline": name},
    "topic": lambda name: {"source": {"kafka": KAFKA | {"topics": [name]}, "fields": {"id": "UInt64"}}},
    "field": lambda name: {
        "source": {"kafka": KAFKA, "fields": {name: "UInt64"}},
        "identity": {"fields": [name]},
    },
    "table": lambda name: {"tables": [{"name": name}]},
    "database": lambda name: {"tables": [{"name": f"{name}.events"}]},
    "column": lambda name: {"tables": [{"name": "events", "columns": {name: "id"}}]},
    "batch column": lambda name: {"tables": [{"name": "events", "batch_column": name}]},
    "id column": lambda name: {"tables": [{"name": "events", "id_column": name}]},
    "header": lambda name: {"identity": {"fields": ["id"], "headers": [name]}},
    "user": lambda name: {"clickhouse": {"url": "http://h:1", "user": name}},
}


def with_name(place: str, name: str) -> dict:
    return document(**MAKE[place](name))


def texts_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, inner in value.items():
                yield key
                yield from texts_in(inner)
        case list():
            for inner in value:
                yield from texts_in(inner)


QUOTING_PLACES = [place for place in MAKE if place not in {"pipeline", "topic"}]


@pytest.mark.parametrize("place", MAKE)
@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_a_name_that_no_place_takes_is_refused_in_visible_words(place, name):
    with pytest.raises(ConfigurationError) as refusal:
        Pipeline(**with_name(place, name))
    lines = visible(str(refusal.value)).split("\n")
    assert all(line.isprintable() for line in lines), lines
    assert sum(map(len, lines)) < 1000, "a message is no copy of what was sent"


@pytest.mark.parametrize("place", ["pipeline", "topic"])
@pytest.mark.parametrize("name", QUOTABLE.values(), ids=QUOTABLE)
def test_names_that_become_files_and_topics_are_plain(place, name):
    if (place, name) == ("topic", "SELECT"):
        assert Pipeline(**with_name(place, name)).source.topics == (name,)
        return
    with pytest.raises(ConfigurationError):
        Pipeline(**with_name(place, name))


@pytest.mark.parametrize("place", QUOTING_PLACES)
@pytest.mark.parametrize("name", QUOTABLE.values(), ids=QUOTABLE)
def test_a_strange_name_is_a_name_or_refused_as_one_with_too_many_dots(place, name):
    if place in {"table", "database"} and "." in name:
        with pytest.raises(ConfigurationError, match="dot"):
            Pipeline(**with_name(place, name))
        return
    pipeline = Pipeline(**with_name(place, name))
    assert any(name in text for text in texts_in(pipeline.model_dump(mode="json")))


@pytest.mark.parametrize("at", [at for at in ALL if at != "lone surrogate"])
def test_a_file_says_the_same_about_a_name_as_a_section_built_by_hand(at):
    text = json.dumps(with_name("column", ALL[at]))  # JSON is YAML, with everything escaped
    if at in QUOTABLE:
        assert ALL[at] in parse_pipeline(text, "pipeline.yaml").tables[0].columns
        return
    with pytest.raises(ConfigurationError, match=r"pipeline\.yaml:1: ") as refusal:
        parse_pipeline(text, "pipeline.yaml")
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("name", QUOTABLE.values(), ids=QUOTABLE)
def test_a_quoted_name_has_no_backtick_that_ends_it(name):
    quoted = quote(name)
    assert (quoted[0], quoted[-1]) == ("`", "`")
    body, at = quoted[1:-1], 0
    while at < len(body):
        assert body[at] != "`", f"{quoted} ends early"
        at += 2 if body[at] == "\\" else 1
    assert at == len(body), "the closing backtick is escaped away"


@pytest.mark.parametrize(
    "name", [name for at, name in REFUSED.items() if at != "space around"], ids=lambda name: ascii(name)[:20]
)
def test_what_a_server_or_a_record_names_is_refused_before_it_is_quoted(name):
    with pytest.raises(ConfigurationError):
        quote(name)
    with pytest.raises(ConfigurationError):
        quote_table(f"shop.{name}")


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_the_schedulers_database_takes_no_such_name(name):
    with pytest.raises(ConfigurationError):
        EtlSettings(clickhouse={"url": "http://h:1"}, database=name)


@pytest.mark.parametrize("escaped", ["a%0Ab", "a%00b", "a%E2%80%AEb", "a%2Fb", "x" * 10_000])
def test_the_database_of_an_address_is_a_name_too(escaped):
    with pytest.raises(ConfigurationError, match=r"clickhouse\.url: "):
        Pipeline(**document(clickhouse={"url": f"http://h:1/{escaped}"}))


def test_a_pipelines_name_cannot_lead_out_of_its_folder():
    for name in ("..", "../x", "a/b", "a\\b", "A", "-a", "_a", ".a", f"a\n{uuid.uuid4().hex[:8]}", "a" * 64):
        with pytest.raises(ConfigurationError):
            Pipeline(**document(pipeline=name))
