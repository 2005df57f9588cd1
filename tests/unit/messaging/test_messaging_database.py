"""What messaging makes of a database's errors."""

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from oncehouse.common.database import DatabaseClock, locate, open_engine, wrap_error, wrap_text
from oncehouse.errors import ConfigurationError, PermanentError, TransientError
from oncehouse.messaging.database import check_dialect, wrapped_errors


@pytest.fixture
def engine(tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path / 'messages.db'}", setting="database")
    yield engine
    engine.dispose()


def test_a_database_that_cannot_serve_is_refused_with_advice():
    with pytest.raises(
        ConfigurationError, match="mysql is not supported for messaging; use postgresql or sqlite"
    ):
        check_dialect("mysql")


def test_a_missing_table_is_a_matter_of_set_up(engine):
    with (
        pytest.raises(ConfigurationError, match=r"Reading: no such table: nowhere\. Make it"),
        engine.connect() as connection,
        wrapped_errors("Reading", absent="Make it."),
    ):
        connection.execute(text("SELECT * FROM nowhere"))


def test_what_the_database_refuses_for_good_is_permanent(engine):
    with (
        pytest.raises(PermanentError, match="Reading: the database refused a statement"),
        engine.connect() as connection,
        wrapped_errors("Reading", absent="Make it."),
    ):
        connection.execute(text("SELEC"))


def test_a_database_that_is_away_may_be_tried_again():
    engine = open_engine("postgresql+psycopg://nobody@127.0.0.1:9/none?connect_timeout=1", setting="database")
    with (
        pytest.raises(TransientError, match="may be tried again"),
        wrapped_errors("Reading", absent="Make it."),
    ):
        engine.connect()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('FATAL:  role "ann" does not exist', "Check user, password and database in its URL"),
        ('FATAL:  database "shop" does not exist', "Check user, password and database in its URL"),
        ('FATAL:  password authentication failed for user "ann"', "does not let us in"),
        ("FATAL:  the database system is starting up", "may be tried again"),
    ],
)
def test_a_database_that_shuts_us_out_points_at_its_url(said, told):
    error = OperationalError("connect", None, Exception(f"connection failed: {said}"))
    wrapped = wrap_error(error, what="Reading", absent="Make it.")
    assert isinstance(wrapped, TransientError)
    assert told in str(wrapped)
    engine = open_engine("postgresql+psycopg://ann:secret@127.0.0.1:9/shop", setting="database")
    of_outbox = str(wrap_text(str(error.orig), what="Outbox o", where=locate(engine), passing=True))
    assert ("does not let us in" in of_outbox) == ("starting up" not in said)
    assert "secret" not in of_outbox


def test_statements_by_the_databases_clock_are_compiled_once(engine):
    cache: dict[object, object] = {}
    with engine.execution_options(compiled_cache=cache).connect() as connection:
        for seconds in (1.0, 2.0):
            connection.execute(select(DatabaseClock() + seconds))
    assert len(cache) == 1
