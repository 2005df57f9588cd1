"""The scheduler's own file, `etl.yaml`, as frozen values: which server, which database, where offsets live.

Read as a pipeline file is: every problem at once with its line, `${env:NAME}` and `${file:/path}` for secrets,
paths from the file's own folder. What is built from what stands in the lineage folder, not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from oncehouse.clickhouse.identifiers import check
from oncehouse.config.field_types import Count, Name, Seconds
from oncehouse.config.file_loader import PlaceKind, parse_section, read_text
from oncehouse.config.pipeline import ClickHouse, Section
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    import os

LATE_EVERY_SECONDS = 60.0
AHEAD_SECONDS = 86400.0
"""Rows of a source that are further in the future than this are not taken for its time."""
_PATHS: tuple[tuple[tuple[str, ...], PlaceKind], ...] = (
    (("lineage",), "folder"),
    (("offsets", "catalog"), "sqlite"),
    (("clickhouse", "ca_file"), "folder"),
)
_ABSENT = "write clickhouse.url, offsets.store and lineage into it, as docs/reference/etl.md shows"


class Offsets(Section):
    store: Literal["keepermap", "rocksdb", "catalog"] = "rocksdb"
    """`keepermap` for a cluster, `rocksdb` for one server, `catalog` for the database of a ledger."""
    path: str = "/ETL/Offsets"
    """For `keepermap`: the path under the server's keeper_map_path_prefix."""
    catalog: SecretStr | None = None
    """For `catalog`: sqlite:///offsets.db (relative to this file) or postgresql+psycopg://…"""

    @field_validator("path")
    @classmethod
    def _path_is_plain(cls, path: str) -> str:
        if (
            not path.startswith("/")
            or not path.isascii()
            or not path.replace("/", "").replace("_", "").isalnum()
        ):
            raise ValueError("must be letters, digits, '_' and '/', beginning with '/', such as /ETL/Offsets")
        return path

    @model_validator(mode="after")
    def _catalog_has_a_url(self) -> Self:
        if self.store == "catalog" and self.catalog is None:
            raise ValueError('store "catalog" needs `catalog`, such as sqlite:///offsets.db')
        if self.store != "catalog" and self.catalog is not None:
            raise ValueError(f'`catalog` has no meaning with store "{self.store}"; remove one of them')
        return self


class EtlSettings(Section):
    clickhouse: ClickHouse
    """The ClickHouse server that holds Stage and Fact tables."""
    database: Name = "ETL"
    """Database of the scheduler's own tables, and of transform views whose topic does not name one."""
    lineage: str = "lineage"
    """Folder of the lineage files, relative to this file."""
    offsets: Offsets = Offsets()
    """Where positions are kept."""
    lease: Annotated[Seconds, Field(ge=1)] = 60.0
    """After this long without a sign of life another process may take a topic over."""
    parallel: Annotated[Count, Field(ge=1, le=256)] = 4
    """How many topics may be worked on in parallel."""
    late_every: Annotated[Seconds, Field(ge=1)] = LATE_EVERY_SECONDS
    """How often late rows are looked for, by one of all hosts."""
    ahead: Annotated[Seconds, Field(ge=1)] = AHEAD_SECONDS
    """Rows of a source that are further in the future than this are left alone until their time has come."""

    @field_validator("database")
    @classmethod
    def _database_can_be_quoted(cls, database: str) -> str:
        try:
            check(database)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if "." in database:
            raise ValueError("must be one name, without a dot")
        return database


def load_settings(path: str | os.PathLike[str]) -> EtlSettings:
    """The settings that a file declares, or a ConfigurationError that lists everything wrong with it."""
    file = Path(path)
    return parse_settings(read_text(file, absent=_ABSENT), str(file), folder=file.absolute().parent)


def parse_settings(text: str, name: str, *, folder: Path | None = None) -> EtlSettings:
    """As `load_settings`, from text; `name` stands in messages, relative paths are read from `folder`."""
    settings = parse_section(
        text, name, section=EtlSettings, example="database: ETL", folder=folder, paths=_PATHS
    )
    if folder is None or "lineage" in settings.model_fields_set:
        return settings
    # A path that was left out is read from the file's folder too.
    return settings.model_copy(update={"lineage": str(folder / settings.lineage)})
