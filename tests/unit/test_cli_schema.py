"""`oncehouse schema`: versions in the ledger, by hand and by file."""

import json

import pytest
import yaml

from oncehouse.cli.app import run_command
from oncehouse.ledger.catalog import Catalog
from oncehouse.ledger.fields import learn_fields
from oncehouse.ledger.records import LearnedField
from oncehouse.ledger.schemas import list_schemas


def write_avro(folder, name, *fields):
    file = folder / name
    file.write_text(
        json.dumps({"type": "record", "name": "O", "fields": [{"name": n, "type": t} for n, t in fields]})
    )
    return file


@pytest.fixture
def avro(tmp_path):
    """A pipeline file that reads Avro, with one version listed."""
    write_avro(tmp_path, "one.avsc", ("id", "long"))
    file = tmp_path / "pipeline.yaml"
    document = {
        "pipeline": "orders",
        "source": {
            "kafka": {"bootstrap_servers": "127.0.0.1:9", "topics": ["orders"]},
            "format": "avro",
            "avro": {"version": "header", "schemas": {"1": "one.avsc"}},
            "fields": {"id": "Int64"},
        },
        "identity": {"fields": ["id"]},
        "tables": [{"name": "orders"}],
        "clickhouse": {"url": "http://127.0.0.1:9"},
        "ledger": {"catalog": "sqlite:///catalog.db", "files": "files"},
    }
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def ledger(avro):
    catalog = Catalog(f"sqlite:///{avro.parent}/catalog.db", "orders")
    catalog.prepare()
    yield catalog
    catalog.close()


def test_versions_of_the_file_are_listed_before_there_is_a_ledger(avro, capsys):
    assert run_command(["schema", "list", str(avro)]) == 0
    told = capsys.readouterr().out
    assert ["1", "avro", "1", "-"] in [line.split() for line in told.splitlines()]
    assert "no field is known beyond the pipeline file" in told
    assert not (avro.parent / "catalog.db").exists(), "looking makes no ledger"


def test_a_version_added_by_hand_is_known_and_never_changes(avro, capsys):
    second = write_avro(avro.parent, "two.avsc", ("id", "long"), ("note", ["null", "string"]))
    assert run_command(["schema", "add", "2", str(avro), "--avsc", str(second)]) == 0
    assert "version 2 is in the ledger" in capsys.readouterr().out
    assert run_command(["schema", "add", "2", str(avro), "--avsc", str(second)]) == 0
    assert "knew version 2 already" in capsys.readouterr().out
    assert run_command(["schema", "show", "2", str(avro), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fields"] == {"id": "Int64", "note": "Nullable(String)"}
    other = write_avro(avro.parent, "other.avsc", ("id", "string"))
    assert run_command(["schema", "add", "2", str(avro), "--avsc", str(other)]) == 2
    assert "'2' with another definition" in capsys.readouterr().err
    catalog = Catalog(f"sqlite:///{avro.parent}/catalog.db", "orders")
    assert [schema.schema for schema in list_schemas(catalog)] == ["2"]
    catalog.close()


def test_learnt_fields_are_listed(avro, ledger, capsys):
    learn_fields(
        ledger,
        [
            LearnedField(field="note", type="Nullable(String)"),
            LearnedField(field="id", type="Int128", instead_of="Int64"),
            LearnedField(field="nest", type=None),
        ],
    )
    assert run_command(["schema", "list", str(avro)]) == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["note", "Nullable(String)", "-"] in lines
    assert ["id", "Int128", "Int64"] in lines
    assert ["nest", "left", "out"] in lines


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "9"], "version '9' is not known; known: 1"),
        (["add", "9"], "version '9' cannot be had; give --avsc"),
        (["add", "9", "--avsc", "nowhere.avsc"], "cannot be read"),
        (["add", "9", "--proto", "x.proto", "--avsc", "one.avsc"], "cannot be had; give --avsc"),
    ],
)
def test_what_cannot_be_had_is_said(avro, capsys, arguments, told):
    assert run_command(["schema", arguments[0], arguments[1], str(avro), *arguments[2:]]) == 2
    assert told in capsys.readouterr().err


def test_a_protobuf_schema_needs_a_message_only_where_the_file_names_none(avro, tmp_path, capsys):
    proto = tmp_path / "o.proto"
    proto.write_text('syntax = "proto3"; message P { int64 no = 1; } message O { int64 id = 1; }')
    asked = ["schema", "add", "2", str(avro), "--proto", str(proto)]
    assert run_command(asked) == 2
    assert "reads avro; a schema of protobuf is of no use" in capsys.readouterr().err
    document = yaml.safe_load(avro.read_text())
    del document["source"]["avro"]
    listed = {"1": {"files": ["o.proto"], "message": "O"}}
    document["source"] |= {"format": "protobuf", "protobuf": {"version": "header", "schemas": listed}}
    avro.write_text(yaml.safe_dump(document))
    assert run_command(asked) == 2
    assert "name the message with --message" in capsys.readouterr().err
    document["source"]["protobuf"]["message"] = "O"
    avro.write_text(yaml.safe_dump(document))
    assert run_command(asked) == 0
    assert run_command(["schema", "show", "2", str(avro)]) == 0
    assert "id" in capsys.readouterr().out


def test_a_schema_of_another_format_is_refused(avro, tmp_path, capsys):
    proto = tmp_path / "o.proto"
    proto.write_text('syntax = "proto3"; message O { int64 id = 1; }')
    assert run_command(["schema", "add", "2", str(avro), "--proto", str(proto), "--message", "O"]) == 2
    assert "reads avro; a schema of protobuf is of no use" in capsys.readouterr().err
