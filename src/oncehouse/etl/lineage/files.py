"""Lineage files: a folder of YAML, each file with a list of topics, read as one lineage.

Every problem of every file is reported at once, as `file:line: key: advice`. A file of SQL that a topic
names as its transform is looked for in the folder of that lineage file. A template of its own is filled in once, to
find what is wrong with it. No server is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from oncehouse.common.extras import needs_extra
from oncehouse.config.field_types import Count, Name, Seconds, TableName
from oncehouse.config.file_loader import format_with_lines, read_text
from oncehouse.config.pipeline import Section
from oncehouse.config.problems import Problem, explain, nearest
from oncehouse.config.yaml_reader import Document, UnreadableError, read_yaml
from oncehouse.errors import ConfigurationError
from oncehouse.etl.lineage.expectation_file import ExpectationSection, Share, make_expectation
from oncehouse.etl.lineage.graph import check_lineage
from oncehouse.etl.lineage.sql_text import TEMPLATE_FILE, is_template_file, split_statements
from oncehouse.etl.lineage.topic import GATE_SHARE, LATE_WITHIN_SECONDS, LatePolicy, Template, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOPIC = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_SQL_FILE = ".sql"
_OF_A_SESSION = frozenset({"SET", "USE"})
_KNOWN_TEMPLATES = tuple(template.value for template in Template)


def _check_topic(value: str) -> str:
    if not _TOPIC.fullmatch(value):
        raise ValueError(
            "must be letters, digits and '_', not a digit first, at most 100: it is part of view names"
        )
    return value


def _split_tables(value: object) -> object:
    """A list, or names with commas between."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    """A list of statements, or one statement alone."""
    return (value,) if isinstance(value, str) else value


def _split_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Each text may hold several statements, with semicolons between."""
    statements = tuple(one for text in texts for one in split_statements(text))
    for one in statements:
        word = one.words.split(maxsplit=1)[0].upper()
        if word in _OF_A_SESSION:
            raise ValueError(
                f"{one.text!a} would change nothing: each statement is sent by itself; write SETTINGS, or the "
                "database's name, into the statement that needs it"
            )
    return tuple(one.text for one in statements)


def _check_template(value: str) -> str:
    if value in _KNOWN_TEMPLATES or is_template_file(value):
        return value
    meant = nearest(value, _KNOWN_TEMPLATES)
    raise ValueError(
        f"must be {', '.join(_KNOWN_TEMPLATES)}, or a file of your own ending in {TEMPLATE_FILE}"
        + (f'; did you mean "{meant}"?' if meant else "")
    )


def _check_late(value: str) -> str:
    known = [late.value for late in LatePolicy]
    if value in known:
        return value
    meant = nearest(value, known)
    raise ValueError(f"must be {', '.join(known)}" + (f'; did you mean "{meant}"?' if meant else ""))


def _as_value(value: object) -> object:
    """Lists become tuples; what a template cannot bind is refused."""
    if isinstance(value, list):
        kinds = {type(one) for one in value}
        if (value and kinds <= {str}) or (kinds <= {int, float} and value):
            return tuple(value)
        raise ValueError("a list must hold texts or numbers, all of one kind, and at least one")
    if not isinstance(value, str | int | float):
        raise ValueError("must be a text, a number, true, false, or a list")  # noqa: TRY004
    return value


Parameter = Annotated[Any, BeforeValidator(_as_value)]
Parameters = dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], Parameter]
Statements = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_one_or_more),
    AfterValidator(_split_texts),
]


class TopicSection(Section):
    topic: Annotated[str, AfterValidator(_check_topic)]
    """Label of the table that is built, and part of the name of its transform view."""
    dst: TableName
    """`database.table` of the table that is built, or of a source when there is no `depends_on`."""
    depends_on: Annotated[tuple[TableName, ...], BeforeValidator(_split_tables)] = ()
    """Tables it is made of, the main source first: a list, or names with commas between."""
    template: Annotated[str, AfterValidator(_check_template)] = Template.STEP.value
    """`step`, `reload`, `range`, or a file of your own ending in `.sql.j2`."""
    like: Literal["step", "reload", "range"] | None = None
    """For a template of your own: the one whose way of putting rows in place it follows; `step` when left out."""
    parameters: Parameters = Field(default_factory=dict)
    """For a template of your own: values that it asks for."""
    transform: Annotated[str, Field(min_length=1)] | None = None
    """View or SQL file that yields the rows; `<database>.<topic>Transform` when left out."""
    delay: Seconds = 0.0
    """How long the newest rows wait, for clocks that differ and sources that are still writing."""
    repeat: Seconds = 0.0
    """Least time between two runs; a run that leaves rows behind is followed at once."""
    maxstep: Count = Field(default=1_000_000, ge=1)
    """A step covers at most this many rows of the main source."""
    comment: str = ""
    """What people should know about it."""
    before: Statements = ()
    """Statements to run before the rows are inserted, in one text with semicolons between, or a list."""
    after: Statements = ()
    """Statements to run after the rows are inserted, in one text with semicolons between, or a list."""
    range_column: Name | None = None
    """For `range`: the DateTime column of the dst whose partitions are replaced."""
    gate: Share = GATE_SHARE
    """For `reload` and `range`: with fewer than this share of the rows it had, nothing is put in place."""
    expect: tuple[ExpectationSection, ...] = ()
    """What must hold of the rows of a run before readers see them."""
    late: Annotated[str, AfterValidator(_check_late)] = LatePolicy.COUNT.value
    """Rows that arrive with positions already passed: `count`, `repair`, `stop` or `ignore`."""
    late_within: Seconds = LATE_WITHIN_SECONDS
    """How far behind its position a topic looks for late rows."""

    @model_validator(mode="after")
    def _only_own_templates_are_like_another(self) -> Self:
        if self.like is not None and not is_template_file(self.template):
            raise ValueError(f"`like` is for a template of your own, a file ending in {TEMPLATE_FILE}")
        return self

    @field_validator("dst", "depends_on")
    @classmethod
    def _name_the_database(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for table in (value,) if isinstance(value, str) else value:
            if "." not in table:
                raise ValueError(f"{table!a} does not name its database; write database.{table}")
        return value


class LineageFile(Section):
    topics: tuple[TopicSection, ...] = Field(min_length=1)
    """The topics of this file."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """One file and what stands in it."""

    file: Path
    document: Document
    topics: tuple[Topic, ...]


def load_lineage(folder: Path | str) -> tuple[Topic, ...]:
    """The topics of all `*.yaml` files of the folder, or a ConfigurationError that lists all that is wrong."""
    place = Path(folder)
    files = sorted(file for pattern in ("*.yaml", "*.yml") for file in place.glob(pattern))
    if not files:
        raise ConfigurationError(
            f"{place}: no lineage file (*.yaml) there; set `lineage` in the settings to the folder that has them"
        )
    read: list[_Read] = []
    errors: list[str] = []
    for file in files:
        try:
            read.append(_read_file(file))
        except ConfigurationError as error:
            errors.append(str(error))
    # With a file missing, what the others depend on would look unknown.
    errors += [] if errors else _describe_lineage(read)
    if errors:
        raise ConfigurationError("\n".join(errors))
    return tuple(topic for one in read for topic in one.topics)


def _read_file(file: Path) -> _Read:
    try:
        document = read_yaml(read_text(file, absent="it was there a moment ago"))
    except UnreadableError as error:
        line, reason = error.args
        raise ConfigurationError(f"{file}:{line}: {reason}") from None
    problems = list(document.problems)
    topics: tuple[Topic, ...] = ()
    if not isinstance(document.value, dict):
        problems.append(Problem(path=(), text="must be `topics:` with a list of topics under it"))
    else:
        try:
            topics, missing = _make_topics(LineageFile.model_validate(document.value), file.parent)
            problems += missing
        except ValidationError as error:
            problems += explain(error, section=LineageFile)
    if problems:
        raise ConfigurationError(format_with_lines(problems, str(file), document))
    return _Read(file=file, document=document, topics=topics)


def _make_topics(content: LineageFile, folder: Path) -> tuple[tuple[Topic, ...], list[Problem]]:
    topics = tuple(_make_topic(section, folder) for section in content.topics)
    problems = [
        Problem(path=("topics", at, key), text=text)
        for at, (section, topic) in enumerate(zip(content.topics, topics, strict=True))
        for key, text in _find_wrong_files(section, topic)
    ]
    return topics, problems


def _find_wrong_files(section: TopicSection, topic: Topic) -> Iterator[tuple[str, str]]:
    for key, name, path in (
        ("transform", section.transform, topic.transform),
        ("template", section.template, topic.template_file),
    ):
        is_file = path is not None and path.endswith((_SQL_FILE, TEMPLATE_FILE))
        if is_file and not Path(path or "").is_file():
            yield key, f"there is no file {name} next to this one"
        elif key == "template" and path is not None:
            with needs_extra("etl", "a template of your own"):
                from oncehouse.etl.lineage.user_templates import check_template
            try:
                check_template(topic, Path(path))
            except ConfigurationError as error:
                yield key, str(error)


def _make_topic(section: TopicSection, folder: Path) -> Topic:
    is_own = is_template_file(section.template)
    return Topic(
        topic=section.topic,
        dst=section.dst,
        depends_on=section.depends_on,
        template=Template((section.like or Template.STEP) if is_own else section.template),
        transform=_place(section.transform, folder),
        delay_seconds=section.delay,
        repeat_seconds=section.repeat,
        maxstep_rows=section.maxstep,
        comment=section.comment,
        before=section.before,
        after=section.after,
        range_column=section.range_column,
        gate_share=section.gate,
        expect=tuple(make_expectation(one) for one in section.expect),
        template_file=str(folder / section.template) if is_own else None,
        parameters=tuple(section.parameters.items()),
        late=LatePolicy(section.late),
        late_within_seconds=section.late_within,
    )


def _place(name: str | None, folder: Path) -> str | None:
    """A file's path from wherever the command was started; names of views as they are."""
    return str(folder / name) if name is not None and name.endswith(_SQL_FILE) else name


def _describe_lineage(read: Sequence[_Read]) -> list[str]:
    """What is wrong between topics, each at the line of the last topic that has the name."""
    places = {topic.topic: (one, ("topics", at)) for one in read for at, topic in enumerate(one.topics)}
    errors = []
    for problem in check_lineage([topic for one in read for topic in one.topics]):
        one, path = places[problem.topic]
        errors.append(
            format_with_lines(
                [Problem(path=(*path, problem.key), text=problem.text)], str(one.file), one.document
            )
        )
    return errors
