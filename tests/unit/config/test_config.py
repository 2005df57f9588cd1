"""The pipeline as a Python value: the checks and words of the file, frozen, silent about secrets."""

import pickle
import subprocess
import sys

import pytest
from pydantic import SecretStr

import oncehouse
from oncehouse.config.pipeline import (
    BatchLimits,
    ClickHouse,
    Declare,
    Identity,
    Kafka,
    Ledger,
    Pipeline,
    Source,
    Spark,
    Table,
    reveal,
)
from oncehouse.errors import ConfigurationError


def make_pipeline(**changes) -> Pipeline:
    values = {
        "pipeline": "events",
        "source": Source(
            kafka=Kafka(bootstrap_servers="localhost:9092", topics=["events"]),
            fields={"project": "String", "product_id": "UInt64"},
        ),
        "identity": Identity(fields=["project", "product_id"], window="60d"),
        "tables": [Table(name="events")],
        "clickhouse": ClickHouse(url="http://localhost:8123"),
        "ledger": Ledger(catalog="sqlite:///catalog.db", files="files"),
    }
    return Pipeline(**{**values, **changes})


def problems_of(**changes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make_pipeline(**changes)
    return str(caught.value)


def test_a_pipeline_is_built_in_python_with_the_words_of_the_file():
    pipeline = make_pipeline()
    assert pipeline.identity.window == 60 * 86400
    assert pipeline.limits("events") == BatchLimits()


def test_a_table_may_have_limits_of_its_own():
    own = BatchLimits(min_rows=5)
    pipeline = make_pipeline(
        tables=[Table(name="a", batch=own), Table(name="b")], batch=BatchLimits(min_rows=7)
    )
    assert (pipeline.limits("a").min_rows, pipeline.limits("b").min_rows) == (5, 7)


def test_the_public_names_come_from_the_package():
    from oncehouse.config.file_loader import load_pipeline

    assert oncehouse.Pipeline is Pipeline
    assert oncehouse.load_pipeline is load_pipeline
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = oncehouse.nothing


def test_importing_the_package_loads_no_driver():
    code = "import sys, oncehouse; print({'pydantic', 'pyspark', 'pyarrow', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_section_built_alone_words_its_problems_the_same_way():
    with pytest.raises(ConfigurationError) as caught:
        Kafka(brokers="localhost:9092", topics=["a b"])
    assert 'Kafka: brokers: unknown key; did you mean "bootstrap_servers"?' in str(caught.value)
    assert "Kafka: topics[0]: 'a b' is not a topic name" in str(caught.value)


def test_contradictions_are_told_beside_other_problems():
    told = problems_of(
        identity={"fields": ["projct"], "window": "soon"},
        tables=[
            {"name": "t", "columns": {"c": "product"}, "route": {"field": "nope", "values": [1]}},
            {"name": "t"},
        ],
        lease=True,
    )
    assert "identity.fields[0]: 'projct' is not declared in source.fields; did you mean 'project'?" in told
    assert "identity.window: 'soon' is not a duration" in told
    assert (
        "tables[0].columns.c: 'product' is not declared in source.fields; did you mean 'product_id'?" in told
    )
    assert "tables[0].route.field: 'nope' is not declared in source.fields" in told
    assert "tables[1].name: 't' is already tables[0]" in told
    assert "lease: must be a duration" in told


def test_two_tables_declare_no_source_in_common():
    mine = Declare(topic="Stage", pos="event", lateness=1)
    told = problems_of(tables=[Table(name="a", declare=mine), Table(name="b", declare=mine)])
    assert "tables[1].declare.topic: 'Stage' is declared for tables[0] already" in told


def test_a_time_of_insertion_is_not_one_that_the_pipeline_sends():
    table = Table(name="a", columns={"pos": "project"}, declare=Declare(topic="Stage", pos="inserted"))
    assert "tables[0].declare.pos: is `inserted`, but" in problems_of(tables=[table])


@pytest.mark.parametrize("key", ["batch_column", "id_column"])
def test_a_column_is_filled_once(key):
    assert f"tables[0].{key}: column 'project' is already filled" in problems_of(
        tables=[{"name": "t", key: "project"}]
    )


def test_batch_and_id_need_columns_of_their_own():
    told = problems_of(tables=[{"name": "t", "batch_column": "b", "id_column": "b"}])
    assert "tables[0].id_column: column 'b' is already filled" in told


def test_the_id_column_may_be_left_out():
    assert make_pipeline(tables=[Table(name="t", id_column=None)]).tables[0].id_column is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"identity": {"fields": ["project"], "buckets": 12}},
            "identity.buckets: must be a power of two, such as 8 or 16",
        ),
        ({"identity": {"fields": ["project", "project"]}}, "'project' stands here more than once"),
        ({"identity": {"fields": []}}, "identity.fields: is missing; name the fields"),
        ({"identity": {"schema_version": True}}, "identity.fields: is missing; name the fields"),
        ({"identity": {"fields": ["project.name"]}}, "'project.name' is not declared in source.fields"),
        ({"identity": {"headers": ["id", "id"]}}, "identity.headers: 'id' stands here more than once"),
        ({"identity": {"from_schema": True}}, "identity.from_schema: json has no schemas"),
        ({"identity": {"fields": ["project"], "normalize": "nfd"}}, "identity.normalize: "),
        ({"identity": {"key": True, "schema_version": True}}, "identity.schema_version: json has no schemas"),
        (
            {"identity": {"fields": ["project"], "from_schema": 2}},
            "let either the file or the schemas name the fields",
        ),
        ({"identity": {"fields": ["project"], "window": 0}}, "identity.window: must be greater than 0"),
        (
            {"batch": {"min_rows": 5, "max_rows": 4}},
            "batch: min_rows (5) must not be greater than max_rows (4)",
        ),
        ({"batch": {"min_rows": 10.5}}, "batch.min_rows: must be a valid integer"),
        ({"batch": {"max_wait": float("inf")}}, "batch.max_wait: must be a finite number"),
        (
            {"retry": {"base": "2m", "longest": "1m"}},
            "retry: base (120) must not be greater than longest (60)",
        ),
        ({"pipeline": "Events"}, "pipeline: must be lowercase letters"),
        ({"tables": []}, "tables: must not be empty"),
        (
            {"ledger": {"catalog": "mysql://u:hunter2@h/d", "files": "f"}},
            "ledger.catalog: 'mysql' is no catalog",
        ),
        ({"ledger": {"catalog": "catalog.db", "files": "f"}}, "ledger.catalog: must be a URL: sqlite:///"),
        ({"ledger": {"catalog": "sqlite:///c", "files": ""}}, "ledger.files: must not be empty"),
        ({"dead_letters": {"max_share": 2}}, "dead_letters.max_share: must be less than or equal to 1"),
        (
            {"clickhouse": "http://localhost"},
            "clickhouse: must be a section with keys such as url, user, password, not text",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_key(changes, told):
    message = problems_of(**changes)
    assert told in message
    assert "hunter2" not in message


@pytest.mark.parametrize("option", ["group.id", "kafka.group.id", "enable.auto.commit", "kafka.linger.ms"])
def test_client_options_that_the_pipeline_owns_are_refused(option):
    with pytest.raises(ConfigurationError, match=option.replace(".", r"\.").removeprefix(r"kafka\.")):
        Kafka(bootstrap_servers="a:1", topics=["t"], options={option: "x"})


def test_a_wrong_type_is_told_with_its_field():
    with pytest.raises(ConfigurationError, match=r"Source: fields\.price: .*Strin"):
        Source(kafka=Kafka(bootstrap_servers="a:1", topics=["t"]), fields={"id": "UInt64", "price": "Strin"})


def test_values_cannot_be_changed_after_the_check():
    with pytest.raises(ValueError, match="frozen"):
        make_pipeline().lease = 5


def test_a_pipeline_survives_pickling_with_its_secrets():
    pipeline = make_pipeline(clickhouse=ClickHouse(url="http://h:1", password="hunter2"))
    again = pickle.loads(pickle.dumps(pipeline))
    assert again == pipeline
    assert reveal(again.clickhouse.password) == "hunter2"


def test_secrets_are_in_no_text_form_of_a_pipeline():
    pipeline = make_pipeline(
        source=Source(
            kafka=Kafka(
                bootstrap_servers="a:1",
                topics=["t"],
                options={"security.protocol": "SASL_SSL", "sasl.password": "hunter2", "linger.ms": 5},
            ),
            fields={"project": "String", "product_id": "UInt64"},
        ),
        clickhouse=ClickHouse(url="http://h:1", password="hunter2"),
        ledger=Ledger(catalog="postgresql+psycopg://me:hunter2@h/d", files="s3://key:hunter2@bucket/x"),
        spark=Spark(settings={"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.ui.enabled": False}),
    )
    for text in (
        repr(pipeline),
        str(pipeline),
        pipeline.model_dump_json(),
        repr(pipeline.spark),
        repr(pipeline.ledger),
    ):
        assert "hunter2" not in text
    assert pipeline.source.kafka.options == {
        "security.protocol": "SASL_SSL",
        "sasl.password": SecretStr("hunter2"),
        "linger.ms": "5",
    }
    assert pipeline.spark.settings == {
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
        "spark.ui.enabled": "false",
    }


def test_a_pipeline_of_frames_has_no_kafka_and_every_other_one_has_some():
    fields = {"id": "UInt64"}
    frames = Source(format="frame", fields=fields)
    assert (frames.kafka, frames.topics) == (None, ())
    with pytest.raises(ConfigurationError, match="leave `kafka` out"):
        Source(format="frame", fields=fields, kafka={"bootstrap_servers": "localhost:9092", "topics": ["a"]})
    with pytest.raises(ConfigurationError, match="`kafka` is missing"):
        Source(format="json", fields=fields)
