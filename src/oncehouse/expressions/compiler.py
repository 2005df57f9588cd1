"""SQL expressions of the pipeline file, checked and compiled before any data moves.

An accepted text is one scalar expression over existing columns: its value in a row depends on that row alone. The text
is parsed, every node of the tree is checked, names are replaced by the engine's, and the SQL that workers run is
generated from the tree; the user's own text never reaches a statement. Last, the engine's own plan is inspected,
because a macro may hide an aggregate or a query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from oncehouse.column_types import types as c
from oncehouse.expressions.duckdb_engine import engine_field, first_line, open_engine
from oncehouse.expressions.result_types import find_mismatch
from oncehouse.expressions.scope import Expression, ExpressionError, Input, Scope

LONGEST = 20_000
BLOCK = "block"

_NODES = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLLATE",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "LAMBDA",
    "OPERATOR",
    "TYPE",
}
_ADVICE = {
    "SUBQUERY": "holds a query of its own; an expression sees its own row only (use a look-up, or list_contains)",
    "WINDOW": "looks at neighbouring rows; an expression sees its own row only",
    "STAR": "holds a star; name the columns",
    "PARAMETER": "holds a parameter (? or $1); write the value",
    "POSITIONAL_REFERENCE": "holds #1; name the column",
}
# They describe the engine, not the event.
_REFUSED_FUNCTIONS = {"current_setting", "getvariable", "current_query", "version"}
# What they make is as large as an argument says, and the engine's limit of memory does not hold for all of it.
_SIZES = dict.fromkeys(("range", "generate_series"), slice(0, None)) | dict.fromkeys(
    ("repeat", "lpad", "rpad", "list_resize", "array_resize"), slice(1, 2)
)
"""Which of their arguments say it."""
# Words that the parser takes for columns and the engine for functions.
_KEYWORDS = {"current_date", "current_timestamp", "localtimestamp"}
_PLAIN_PLAN = {"PROJECTION", "PYTHON_ARROW_SCAN"}
_NEIGHBOURS = "looks at other rows or makes several of one; an expression sees its own row only"


class Compiler:
    """Compiles expressions over one scope; a context, because it holds an engine."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._engine = open_engine(explaining=True)
        fields = [engine_field(found.name, found.type) for found in scope.inputs()]
        # A column of its own for expressions that read none: rows are counted by it.
        schema = pa.schema([*(found for found in fields if found is not None), pa.field("", pa.int8())])
        self._engine.register(BLOCK, schema.empty_table())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()

    def compile(self, text: str, declared: c.ColumnType) -> Expression:
        """Raises ExpressionError unless the text is an expression whose values may be of the declared type."""
        try:
            tree = self._parse(text)
            walk = _ExpressionChecker(self._scope)
            walk.check(tree["select_list"][0], frozenset())
            expression = Expression(
                sql=self._write(tree), inputs=tuple(walk.inputs.values()), copied=walk.copied(tree)
            )
        except RecursionError:
            raise ExpressionError("is nested too deeply") from None
        if mismatch := self._find_mismatch(expression, declared):
            raise ExpressionError(mismatch)
        return expression

    def _parse(self, text: str) -> Any:
        if len(text) > LONGEST:
            raise ExpressionError(f"is longer than {LONGEST} characters")
        if not text.strip():
            raise ExpressionError("is empty; write an SQL expression over the event's fields")
        # In parentheses, so that only an expression parses; on a line of its own, so that a comment ends.
        answer = self._ask("SELECT json_serialize_sql(?)", f"SELECT (\n{text}\n)")
        if answer["error"]:
            raise ExpressionError(f"is no SQL expression: {_describe_place(answer, text)}")
        statements = answer["statements"]
        tree = statements[0]["node"]
        if len(statements) != 1 or not _is_one_expression(tree):
            raise ExpressionError("must be one expression: no second one, no FROM, no statement")
        return tree

    def _write(self, tree: Any) -> str:
        whole = json.dumps({"error": False, "statements": [{"node": tree, "named_param_map": []}]})
        answer = self._engine.execute("SELECT json_deserialize_sql(?::JSON)", [whole]).fetchall()
        return str(answer[0][0]).removeprefix("SELECT ")

    def _ask(self, question: str, text: str) -> Any:
        try:
            return json.loads(self._engine.execute(question, [text]).fetchall()[0][0])
        except duckdb.Error as error:
            raise ExpressionError(f"is no SQL expression: {first_line(error)}") from None

    def _find_mismatch(self, expression: Expression, declared: c.ColumnType) -> str | None:
        if (copied := expression.copied) is not None and engine_field("", copied.type) is None:
            if c.bare(copied.type) == c.bare(declared):
                return None
            return (
                f"is {c.clickhouse_name(copied.type)}, which can only be copied as it is; declare that type"
            )
        for found in expression.inputs:
            if engine_field("", found.type) is None:
                raise ExpressionError(
                    f"{found.column!r} is {c.clickhouse_name(found.type)}, which the engine cannot compute with; "
                    "it can be copied by its name alone"
                )
        try:
            self._require_row_by_row(expression)
            query = f"SELECT ({expression.sql}) AS value FROM {BLOCK}"  # noqa: S608 - written by `_write`
            given = self._engine.sql(query).types[0]
        except duckdb.Error as error:
            raise ExpressionError(_explain_error(first_line(error))) from None
        return find_mismatch(given, declared)

    def _require_row_by_row(self, expression: Expression) -> None:
        """Row by row, in both ways in which workers run it: as it is, and with each failure kept to its row."""
        for sql in (f"({expression.sql})", guarded(expression.sql)):
            plans = self._engine.execute(
                f"EXPLAIN (FORMAT json) SELECT {sql} AS value FROM {BLOCK}"  # noqa: S608 - written by `_write`
            ).fetchall()
            if not set(_operators(json.loads(plans[0][1]))) <= _PLAIN_PLAN:
                raise ExpressionError(_NEIGHBOURS)


def guarded(sql: str) -> str:
    """A struct around the value, which is null exactly where the value could not be computed."""
    return f"TRY(struct_pack(v := ({sql})))"


def _is_one_expression(tree: Any) -> bool:
    return (
        tree.get("type") == "SELECT_NODE"
        and len(tree["select_list"]) == 1
        and not tree["select_list"][0]["alias"]
        and tree["from_table"]["type"] == "EMPTY"
        and not tree["modifiers"]
        and not tree["cte_map"]["map"]
        and not tree["group_expressions"]
        and all(tree[key] is None for key in ("where_clause", "having", "sample", "qualify"))
    )


def _operators(plan: Any) -> Iterator[str]:
    for node in plan:
        yield node["name"]
        yield from _operators(node["children"])


def _explain_error(message: str) -> str:
    if "volatile function" in message:
        return "uses a function that gives something else each time, such as random(); a value must depend on its row"
    if "Function with name" in message:
        return f"cannot be computed: {message} (functions are DuckDB's, not ClickHouse's)"
    return f"cannot be computed: {message}"


def _describe_place(answer: Any, text: str) -> str:
    """Where the parser stumbled; over the parenthesis that `_parse` has added, the text just ends too early."""
    ours = len(f"SELECT (\n{text}\n".encode())
    return "it ends too early" if int(answer.get("position") or 0) == ours else str(answer["error_message"])


def _advise_quotes(path: list[str]) -> str:
    """A word that is no column was perhaps meant as a text; double quotes make it a name all the same."""
    quoted = "'" + path[0].replace("'", "''") + "'"
    return f"; a text stands in single quotes: {quoted}" if len(path) == 1 else ""


class _ExpressionChecker:
    """Checks every node of one expression, and replaces names by the engine's."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.inputs: dict[str, Input] = {}

    def copied(self, tree: Any) -> Input | None:
        top = tree["select_list"][0]
        if top["class"] == "COLUMN_REF" and len(top["column_names"]) == 1:
            return self.inputs.get(top["column_names"][0])
        return None

    def check(self, node: Any, bound: frozenset[str]) -> None:
        """`bound`: the names that the lambdas around this node have bound."""
        if isinstance(node, list):
            for item in node:
                self.check(item, bound)
        if not isinstance(node, dict):
            return
        kind = node.get("class")
        if kind is not None and kind not in _NODES:
            raise ExpressionError(
                _ADVICE.get(kind, f"holds {kind.lower()}, which is no part of an expression")
            )
        match kind:
            case "COLUMN_REF":
                self._name(node, bound)
                return
            case "FUNCTION":
                _check_function(node)
            case "LAMBDA" if node["syntax_type"] == "LAMBDA_KEYWORD":
                bound |= {name.lower() for name in _lambda_names(node["lhs"])}
        for value in node.values():
            self.check(value, bound)

    def _name(self, node: Any, bound: frozenset[str]) -> None:
        path = node["column_names"]
        if path[0].lower() in bound:
            return
        found = self._scope.resolve(path)
        if found is None:
            if len(path) == 1 and path[0].lower() in _KEYWORDS:
                return
            hint = self._scope.nearest(path)
            problem = f"there is no column {'.'.join(path)!r}"
            raise ExpressionError(
                f"{problem}; did you mean {hint!r}?" if hint else f"{problem}{_advise_quotes(path)}"
            )
        column, rest = found
        self.inputs[column.name] = column
        node["column_names"] = [column.name, *rest]


def _check_function(node: Any) -> None:
    path = node["qualified_name"]["path"]
    if len(path) != 1:
        raise ExpressionError(f"{'.'.join(path)!r} names a function by its place; write its name alone")
    name = path[0].lower()
    if name in _REFUSED_FUNCTIONS:
        raise ExpressionError(f"the function {name!r} describes the engine, not the event")
    sizes = node["arguments"][_SIZES[name]] if name in _SIZES else ()
    if any(size["expression"]["class"] != "CONSTANT" for size in sizes):
        raise ExpressionError(
            f"how much {name!r} makes must be a number in the expression, not one of the event"
        )


def _lambda_names(left: Any) -> Iterator[str]:
    if left["class"] == "COLUMN_REF":
        yield from left["column_names"]
    for argument in left.get("arguments", ()):
        yield from _lambda_names(argument["expression"])
