"""Spark's master: where it is, and whether anybody is there before Spark is started.

Spark itself tries an absent master for a minute and then ends with an error of Java's. What may stand in `spark.master`
at all is checked with the file (`config/field_types.py`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncehouse.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from oncehouse.config.pipeline import Pipeline

_STANDALONE = "spark://"
_CONNECT_SECONDS = 5.0
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def is_local(master: str) -> bool:
    return master.startswith("local")


def require_master(pipeline: Pipeline, environment: Mapping[str, str] = os.environ) -> None:
    """Raise if it can be known without Spark that no master will give executors."""
    master = pipeline.spark.master
    if master == "yarn" and not any(environment.get(name) for name in _HADOOP_FOLDERS):
        raise ConfigurationError(
            f"spark.master is yarn, but neither {' nor '.join(_HADOOP_FOLDERS)} is set. Set one of them to the "
            "folder that holds yarn-site.xml and core-site.xml of the cluster."
        )
    problems = [_try_to_reach(*address) for address in standalone_addresses(master)]
    if problems and all(problems):
        reasons = "; ".join(filter(None, problems))
        raise TransientError(
            f"No Spark master answers at {master} ({reasons}). Start it, or correct spark.master. Nothing was read or "
            "written."
        )


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Each master of a standalone cluster, of which one is enough; nothing for masters of other kinds."""
    if not master.startswith(_STANDALONE):
        return []
    pairs = (address.rpartition(":") for address in master.removeprefix(_STANDALONE).split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


def _try_to_reach(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return None
    except OSError as error:
        return f"{host}: {error.strerror or error}"
