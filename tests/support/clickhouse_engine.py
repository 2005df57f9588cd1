"""ClickHouse's engine in a process of its own, since it takes one connection a process: a query in, an answer out."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_LOOP = """
import base64, json, sys
import chdb._chdb as engine
connection = engine.connect(":memory:")
for line in sys.stdin:
    answers = []
    for query, format in json.loads(line):
        try:
            data = connection.query(query, format).bytes()
            answers.append([base64.b64encode(data).decode(), None])
        except Exception as error:
            answers.append([None, str(error)])
    print(json.dumps(answers), flush=True)
"""


class RefusedError(Exception):
    pass


class Engine:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, queries: Sequence[str], format_: str = "JSONCompactEachRow") -> list[bytes | RefusedError]:
        """The answers to some queries, or why they were refused."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([[query, format_] for query in queries]) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        return [RefusedError(why) if why is not None else base64.b64decode(data) for data, why in answers]


@contextmanager
def open_engine() -> Iterator[Engine]:
    with subprocess.Popen(
        [sys.executable, "-c", _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        engine = Engine(process)
        for setting in _SETTINGS:
            (answer,) = engine.ask([f"SET {setting} = 1"])
            assert isinstance(answer, bytes), answer
        yield engine


_SETTINGS = ("allow_suspicious_low_cardinality_types", "allow_suspicious_fixed_string_types")
