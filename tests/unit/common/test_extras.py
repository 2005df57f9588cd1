"""Missing optional packages: what the error says, and that each part imports nothing outside of its extra."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from oncehouse.common.extras import explain_missing, lazy_exports, needs_extra
from oncehouse.errors import ConfigurationError, MissingExtraError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyarrow", "etl"),
        ("grpc_tools.protoc", "protobuf"),
        ("psycopg", "postgres"),
    ],
)
def test_a_missing_package_is_explained_by_its_own_extra_or_that_of_the_caller(module, extra):
    advice = explain_missing(ModuleNotFoundError(name=module), "etl", "oncehouse etl")
    assert advice == (
        f"oncehouse etl needs the package {module.partition('.')[0]}, which is not installed: "
        f"pip install 'oncehouse[{extra}]'"
    )


def test_a_missing_module_of_no_extra_stays_as_it_is():
    with pytest.raises(ModuleNotFoundError) as raised, needs_extra("etl", "a test"):
        import no_such_module  # noqa: F401
    assert not isinstance(raised.value, MissingExtraError)


def test_a_missing_extra_is_a_configuration_error_and_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with (
        pytest.raises(MissingExtraError, match=r"a test needs the package redis") as raised,
        needs_extra("redis", "a test"),
    ):
        import redis  # noqa: F401
    assert isinstance(raised.value, ConfigurationError)
    assert isinstance(raised.value, ImportError)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (str(copied), copied.exit_code) == (str(raised.value), 2)


def test_lazy_names_are_listed_and_others_refused():
    get, list_names = lazy_exports("json", {"loads": "json"}, extra="etl")
    assert get("loads").__name__ == "loads"
    assert "loads" in list_names()
    with pytest.raises(AttributeError, match="module 'json' has no attribute 'nothing'"):
        get("nothing")


PARTS = {
    "core": (
        "oncehouse.cli",
        "oncehouse.config",
        "oncehouse.column_types",
        "oncehouse.ledger.catalog",
        "oncehouse.ledger.open",
        "oncehouse.monitoring.overview",
        "-oncehouse.cli.etl.statement_recorder",
    ),
    "messaging": (
        "oncehouse.messaging",
        "-oncehouse.messaging.clickhouse_handler",
        "-oncehouse.messaging.django",
        "-oncehouse.messaging.inbox.http_endpoint",
        "-oncehouse.messaging.inbox.inlet",
        "-oncehouse.messaging.inbox.redis_inbox",
        "-oncehouse.messaging.outbox.relay.postgres_store",
        "-oncehouse.messaging.repeated_insert",
    ),
    "messaging,postgres": ("oncehouse.messaging.outbox.relay.postgres_store",),
    "messaging,clickhouse": ("oncehouse.messaging.clickhouse_handler", "oncehouse.messaging.repeated_insert"),
    "messaging,django": ("oncehouse.messaging.django",),
    "messaging,redis": ("oncehouse.messaging.inbox.redis_inbox",),
    "inlet": ("oncehouse.messaging.inbox.http_endpoint", "oncehouse.messaging.inbox.inlet"),
    "etl": ("oncehouse.etl", "oncehouse.clickhouse", "oncehouse.cli.etl"),
    "sync": ("oncehouse.sync", "-oncehouse.sync.changes.redis_storage", "-oncehouse.sync.django"),
    "sync,django": ("oncehouse.sync.django", "-oncehouse.sync.django.tasks"),
    "sync,django,celery": ("oncehouse.sync.django",),
    "sync,redis": ("oncehouse.sync.changes.redis_storage",),
    "web": ("oncehouse.web", "oncehouse.metrics", "oncehouse.monitoring"),
    "pipeline": (
        "oncehouse.pipeline",
        "oncehouse.capacity",
        "oncehouse.expressions",
        "oncehouse.ledger",
        "-oncehouse.pipeline.kafka_reader",
    ),
    "pipeline,direct": ("oncehouse.pipeline.kafka_reader",),
    "protobuf": ("oncehouse.protobuf",),
    "pipeline,protobuf": ("oncehouse.pipeline.formats.protobuf",),
    "otel": ("oncehouse.common.tracing", "oncehouse.common.tracing_export"),
}
"""Modules of a part; after a hyphen, those that need one more extra."""


@pytest.mark.parametrize("extras", PARTS)
def test_a_part_imports_nothing_outside_of_its_extras(extras):
    done = start(extras, *PARTS[extras])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["oncehouse.sync.django", "oncehouse.sync.sqlalchemy"])
def test_a_public_name_whose_extra_is_missing_says_how_to_install_it(package):
    program = "import import_without; import_without.block_others(['django'])\n"
    program += f"from {package} import Replacing, ModelSync"
    support = ROOT / "tests" / "support"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=support, capture_output=True, text=True, check=False
    )
    assert f"MissingExtraError: {package}.ModelSync needs the package" in done.stderr
    assert "pip install 'oncehouse[sync]'" in done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("check", "pipeline"),
        ("etl init", "etl"),
        ("sync status", "sync"),
        ("dashboard", "web"),
        ("inbox serve", "inlet"),
    ],
)
def test_a_command_whose_extra_is_missing_says_how_to_install_it_without_a_trace(tmp_path, command, extra):
    assert start("core", "--command", "init", folder=tmp_path).returncode == 0
    done = start("core", "--command", *command.split(), folder=tmp_path)
    assert done.returncode == MissingExtraError.exit_code
    assert f"pip install 'oncehouse[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_core_shows_its_help_and_reads_a_pipeline_file(tmp_path):
    assert "rebuild-index" in start("core", "--command", "--help").stdout
    assert start("core", "--command", "init", folder=tmp_path).returncode == 0
    assert "GRANT" in start("core", "--command", "grants", folder=tmp_path).stdout


def start(*arguments, folder=None):
    program = [sys.executable, str(ROOT / "tests" / "support" / "import_without.py"), *arguments]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
