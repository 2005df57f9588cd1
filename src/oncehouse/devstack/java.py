"""Which Java runs the JVM parts, where PySpark keeps its jars, and how those parts log."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from oncehouse.errors import ConfigurationError

_ADVICE = (
    "Install Java 17 or 21 (on Debian or Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME."
)
_OLDEST, _TOO_NEW = 17, 24

LOGGING_JARS = ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-2*.jar", "log4j-core-*.jar")
"""PySpark's logging set. It must stand first on a class path: Kafka's own slf4j-api is older and knows no log4j 2."""

LOG4J_PROPERTIES = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""


def find_java() -> str:
    """Path of a Java that Spark and Kafka run on; without one, an error that says what to install."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise ConfigurationError(f"There is no Java {where}. {_ADVICE}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    major = parse_java_major(shown)
    if major is None or not _OLDEST <= major < _TOO_NEW:
        raise ConfigurationError(
            f"{java} is Java {major or 'of unknown version'}, which does not serve. {_ADVICE}"
        )
    return java


def parse_java_major(shown: str) -> int | None:
    """17 from `openjdk version "17.0.15" …`; 8 from the older spelling "1.8.0_402"."""
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(match[1]) if match else None


def spark_jars_folder() -> Path:
    """The folder of jars that PySpark ships: it holds Ivy, ZooKeeper and a logging set."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("PySpark is not installed. Run `pip install 'oncehouse[dev-stack]'`.")
    return Path(spec.origin).parent / "jars"


def spark_jars(*patterns: str) -> list[Path]:
    """PySpark's jars that match, each pattern exactly once."""
    folder = spark_jars_folder()
    found = []
    for pattern in patterns:
        matches = sorted(folder.glob(pattern))
        if len(matches) != 1:
            raise ConfigurationError(
                f"{folder} should hold one {pattern} but holds {len(matches)}. Reinstall PySpark."
            )
        found.append(matches[0])
    return found
