import pytest

from oncehouse.errors import ConfigurationError
from oncehouse.messaging.settings import load_messaging


@pytest.fixture
def file(tmp_path):
    return tmp_path / "messaging.yaml"


def test_a_file_gives_brokers_and_database(file):
    file.write_text("kafka: {bootstrap_servers: 'localhost:9092'}\ndatabase: ${env:URL}\n")
    settings = load_messaging(file, {"URL": "postgresql+psycopg://service:secret@db/app"})
    assert settings.require_kafka().bootstrap_servers == "localhost:9092"
    assert settings.require_database() == "postgresql+psycopg://service:secret@db/app"
    assert "secret" not in repr(settings)


def test_a_database_file_is_meant_from_the_files_own_folder(file):
    file.write_text("database: sqlite:///outbox.db\n")
    assert load_messaging(file).require_database() == f"sqlite:///{file.parent}/outbox.db"


def test_what_is_wrong_is_told_with_its_line(file):
    file.write_text("kafka:\n  bootstrap_servers: nowhere\n  brokers: x\n")
    with pytest.raises(ConfigurationError, match=r"messaging.yaml:2: .*(?s:.*)messaging.yaml:3: "):
        load_messaging(file)


def test_a_missing_file_says_what_to_write(file):
    with pytest.raises(ConfigurationError, match=r"no such file; write kafka.bootstrap_servers"):
        load_messaging(file)


def test_what_a_command_needs_and_the_file_leaves_out_is_named(file):
    file.write_text("{}\n")
    settings = load_messaging(file)
    with pytest.raises(ConfigurationError, match=r"no kafka.bootstrap_servers, which"):
        settings.require_kafka()
    with pytest.raises(ConfigurationError, match="no database, which"):
        settings.require_database()
