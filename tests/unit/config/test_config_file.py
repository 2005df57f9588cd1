"""Pipeline files as people write them: right ones load, wrong ones name file, line, key and right word."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehouse.common.redaction import reveal
from oncehouse.config.file_loader import (
    SCHEMA_FILE_NAME,
    example_text,
    json_schema,
    json_schema_text,
    load_pipeline,
    parse_pipeline,
)
from oncehouse.errors import ConfigurationError

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"

GOOD = """\
pipeline: events
source:
  kafka:
    bootstrap_servers: localhost:9092
    topics: [events]
  fields:
    project: String
    product_id: UInt64
identity:
  fields: [project, product_id]
tables:
  - name: events
clickhouse:
  url: http://localhost:8123
ledger:
  catalog: sqlite:///catalog.db
  files: files
"""


def problems_of(text: str, **options) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_pipeline(text, "p.yaml", **options)
    return str(caught.value).splitlines()


def test_the_example_loads_and_speaks_of_sixty_days(tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(example_text())
    pipeline = load_pipeline(file)
    assert pipeline.identity.fields == ("project", "event_type", "product_id")
    assert pipeline.identity.window == 60 * 86400


def test_the_example_loads_with_all_its_comments_taken_in(tmp_path):
    lines = [
        line.replace("# ", "", 1)
        if line.startswith((" ", "  #")) and line.lstrip().startswith("# ")
        else line
        for line in example_text().splitlines()
    ]
    pipeline = parse_pipeline(
        "\n".join(lines),
        "p.yaml",
        environment={"KAFKA_PASSWORD": "hunter2", "CLICKHOUSE_PASSWORD": "hunter3"},
    )
    assert reveal(pipeline.source.kafka.options["sasl.password"]) == "hunter2"
    assert reveal(pipeline.clickhouse.password) == "hunter3"
    assert pipeline.tables[0].route.values == ("click", "purchase")
    assert pipeline.spark.settings == {"spark.driver.memory": "2g"}


def test_the_example_names_its_schema_by_a_relative_path():
    assert example_text().splitlines()[0] == f"# yaml-language-server: $schema=./{SCHEMA_FILE_NAME}"


def test_the_published_schema_is_the_one_of_the_code():
    assert (REFERENCE / SCHEMA_FILE_NAME).read_text() == json_schema_text()


def test_every_key_of_the_schema_is_explained():
    schema = json_schema()
    bare = [
        key
        for section in (schema, *schema["$defs"].values())
        for key, value in section["properties"].items()
        if not value.get("description")
    ]
    assert bare == []


def test_every_key_is_in_the_reference():
    text = (REFERENCE / "pipeline-file.md").read_text()
    schema = json_schema()
    missing = [
        key
        for section in (schema, *schema["$defs"].values())
        for key in section["properties"]
        if f"`{key}`" not in text
    ]
    assert missing == []


def test_the_python_of_the_reference_builds_a_pipeline():
    code = (REFERENCE / "pipeline-file.md").read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(code, names)
    assert names["pipeline"].identity.window == 60 * 86400


def test_durations_and_sizes_of_the_schema_take_text_and_numbers():
    limits = json_schema()["$defs"]["BatchLimits"]["properties"]
    assert {choice["type"] for choice in limits["max_wait"]["anyOf"]} == {"number", "string"}
    assert {choice["type"] for choice in limits["max_bytes"]["anyOf"]} == {"integer", "string"}
    assert (limits["max_wait"]["default"], limits["max_bytes"]["default"]) == ("2s", "256MB")
    assert json_schema()["$defs"]["Spark"]["properties"]["cache"]["default"] is None


def test_all_problems_are_told_together_in_the_order_of_the_file():
    text = (
        GOOD.replace("bootstrap_servers", "brokers")
        .replace("tables:\n  - name: events\n", "")
        .replace("[project, product_id]", "[projct]\n  buckets: 3")
    )
    assert problems_of(text) == [
        "p.yaml:1: tables: is missing",
        'p.yaml:4: source.kafka.brokers: unknown key; did you mean "bootstrap_servers"?',
        "p.yaml:10: identity.fields[0]: 'projct' is not declared in source.fields; did you mean 'project'?",
        "p.yaml:11: identity.buckets: must be a power of two, such as 2 or 4; not 3",
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("retyr: {base: 1s}", 'retyr: unknown key; did you mean "retry"?'),
        ("window: 60d", "window: unknown key; it belongs to identity"),
        ("min_rows: 5", "min_rows: unknown key; it belongs to tables.batch or batch"),
        ("topcs: [a]", 'topcs: unknown key; did you mean "topics"? That belongs to source.kafka'),
        ("ttl: 60d", 'ttl: unknown key; did you mean "window"? That belongs to identity'),
        ("dedup: {}", 'dedup: unknown key; did you mean "identity"?'),
        ("xyzzy: 1", "xyzzy: unknown key; known here: pipeline, source, identity"),
        ('"": 1', "unknown key; known here: pipeline, source"),
        ("lease: 30s\nlease: 40s", "lease: stands here twice; first in line 1"),
        ("batch:", "batch: is empty; write its keys under it"),
        (
            "batch: [1]",
            "batch: must be a section with keys such as min_rows, max_rows, max_bytes, not a list",
        ),
        ("batch: {max_wait: yes}", "batch.max_wait: 'yes' is not a duration"),
        ("spark: {master: 5}", "spark.master: must be text, not a number; put quotes around it"),
        (
            'spark: {settings: {spark.authenticate.secret: " "}}',
            "spark.settings: 'spark.authenticate.secret' is empty. Give the secret of the cluster",
        ),
        (
            "lease: !!python/object/apply:os.system [x]",
            "lease: the tag tag:yaml.org,2002:python/object/apply:os.system",
        ),
        ('lease: !!int "x"', "lease: the tag tag:yaml.org,2002:int is not supported"),
        ("? [a]\n: b", "a key must be text"),
    ],
)
def test_a_wrong_line_is_told_with_the_nearest_right_word(line, told):
    text = f"{line}\n{GOOD}"
    number = text[: text.index(GOOD)].count("\n") if "twice" in told else 1
    assert any(problem.startswith(f"p.yaml:{number}: {told}") for problem in problems_of(text)), problems_of(
        text
    )


def test_a_wrong_column_type_is_told_with_its_line():
    (problem,) = problems_of(GOOD.replace("UInt64", "UInt65"))
    assert problem.startswith("p.yaml:8: source.fields.product_id: ")
    assert "UInt65" in problem


def test_a_missing_key_is_told_at_the_section_that_lacks_it():
    assert problems_of(GOOD.replace("    topics: [events]\n", "")) == [
        "p.yaml:3: source.kafka.topics: is missing"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "p.yaml:1: is empty; write keys and values into it, such as `pipeline: events`"),
        ("# only a comment\n", "p.yaml:1: is empty"),
        ("- a\n", "p.yaml:1: must be keys and values"),
        ("a: [", "p.yaml:1: is not valid YAML"),
        ("a:\n\tb: c", "p.yaml:2: a tab cannot indent YAML"),
        ("a: b\n---\nc: d", "p.yaml:2: holds more than one document"),
        ("a: 1\nb: \x07", "p.yaml:2: holds a character"),
        ("a: &x [1]\nb: *x", "p.yaml:1: anchors (&) and aliases (*) are not supported"),
        ("<<: *x", "p.yaml:1: anchors"),
        ("[" * 5000, "p.yaml:1: nested deeper than 32 levels"),
        ("a: {" * 5000, "p.yaml:1: nested deeper than 32 levels"),
        ("a" * (1 << 20) + "b", "p.yaml:1: larger than 1MB"),
    ],
)
def test_text_that_is_no_pipeline_is_refused_with_its_line(text, told):
    (problem,) = problems_of(text)
    assert problem.startswith(told)


@given(st.text(max_size=200))
def test_any_text_is_answered_with_a_configuration_error(text):
    with pytest.raises(ConfigurationError, match=r"^p\.yaml:\d+: "):
        parse_pipeline(text, "p.yaml", environment={})


@given(st.lists(st.sampled_from(GOOD.splitlines()), max_size=25))
def test_any_mix_of_right_lines_is_a_pipeline_or_a_configuration_error(lines):
    try:
        parse_pipeline("\n".join(lines), "p.yaml", environment={})
    except ConfigurationError as error:
        assert str(error).startswith("p.yaml:")  # noqa: PT017 - both endings are right


def test_yes_and_no_stay_text_and_numbers_may_have_underscores():
    text = GOOD.replace(
        "- name: events", "- name: events\n    route: {field: project, values: [yes, no, 10_000, true]}"
    )
    assert parse_pipeline(text, "p.yaml").tables[0].route.values == ("yes", "no", 10_000, True)


def test_a_file_that_is_not_there_is_told_how_to_make_one(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no such file; `oncehouse init"):
        load_pipeline(tmp_path / "p.yaml")


def test_a_folder_is_no_pipeline_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_pipeline(tmp_path)


def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_bytes(b"a: b\nc: \xff\n")
    with pytest.raises(ConfigurationError, match=r"p\.yaml:2: is not UTF-8"):
        load_pipeline(file)


def test_relative_paths_are_read_from_the_folder_of_the_file(tmp_path, monkeypatch):
    file = tmp_path / "p.yaml"
    file.write_text(GOOD.replace("url: http://localhost:8123", "url: https://h:8443\n  ca_file: ca.pem"))
    monkeypatch.chdir("/")
    pipeline = load_pipeline(file)
    assert pipeline.ledger.files == str(tmp_path / "files")
    assert reveal(pipeline.ledger.catalog) == f"sqlite:///{tmp_path}/catalog.db"
    assert pipeline.clickhouse.ca_file == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    "catalog", ["sqlite:////abs/c.db", "postgresql+psycopg://h/d", "sqlite:///file:x?uri=true"]
)
def test_other_addresses_stay_as_they_are(catalog, tmp_path):
    text = GOOD.replace("sqlite:///catalog.db", catalog).replace("files: files", "files: s3://bucket/x")
    pipeline = parse_pipeline(text, "p.yaml", folder=tmp_path)
    assert reveal(pipeline.ledger.catalog) == catalog
    assert pipeline.ledger.files == "s3://bucket/x"


def test_references_stand_anywhere_in_a_value(tmp_path):
    (tmp_path / "password").write_text("hunter2\n")
    text = GOOD.replace("localhost:9092", "'${env:HOST}:${env:PORT}'").replace(
        "url:", "password: ${file:password}\n  connect_timeout: ${env:WAIT}\n  url:"
    )
    pipeline = parse_pipeline(
        text, "p.yaml", folder=tmp_path, environment={"HOST": "kafka", "PORT": "9092", "WAIT": "7s"}
    )
    assert pipeline.source.kafka.bootstrap_servers == "kafka:9092"
    assert reveal(pipeline.clickhouse.password) == "hunter2"
    assert pipeline.clickhouse.connect_timeout == 7


def test_every_client_option_by_reference_is_hidden():
    text = GOOD.replace("topics:", "options: {some.option: '${env:X}'}\n    topics:")
    pipeline = parse_pipeline(text, "p.yaml", environment={"X": "hunter2"})
    assert "hunter2" not in repr(pipeline)
    assert reveal(pipeline.source.kafka.options["some.option"]) == "hunter2"


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("${env:NOPE}", "the environment variable NOPE is not set"),
        ("${file:nope}", "nope cannot be read: No such file"),
        ("${NOPE}", "${NOPE} is no reference; write ${env:NAME} or ${file:/path}"),
        ("${env:}", "${env:} is no reference"),
    ],
)
def test_a_reference_to_nothing_is_reported_once(reference, told, tmp_path):
    deep = tmp_path / ("folder" * 15)
    deep.mkdir()
    problems = problems_of(
        GOOD.replace("http://localhost:8123", f"'{reference}'"), folder=deep, environment={}
    )
    assert len(problems) == 1
    assert problems[0].startswith("p.yaml:14: clickhouse.url: ")
    assert told in problems[0]


@pytest.mark.parametrize("secret", ["hunter2hunter2", "ab", 'it\'s\n"quoted"', "ключ-ключ"])
def test_a_wrong_value_by_reference_is_never_shown(secret):
    text = GOOD.replace("[project, product_id]", "[project]\n  window: '${env:SECRET}'").replace(
        "localhost:9092", "'${env:SECRET}'"
    )
    told = "\n".join(problems_of(text, environment={"SECRET": secret}))
    assert "'${env:SECRET}' is not a duration" in told
    assert secret not in told
    assert ascii(secret)[1:-1] not in told
