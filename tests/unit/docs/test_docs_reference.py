"""The reference names every command, setting and error class of the code, and none that is not there."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

from oncehouse import errors
from oncehouse.cli import app as command_line
from oncehouse.config.base import Section
from oncehouse.config.file_loader import json_schema
from oncehouse.errors import OncehouseError
from oncehouse.etl.lineage.expectation_file import ExpectationSection
from oncehouse.etl.lineage.files import TopicSection
from oncehouse.etl.settings import EtlSettings, Offsets
from oncehouse.messaging.settings import MessagingSettings
from oncehouse.sync import settings as sync_settings

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


def load_options():
    spec = importlib.util.spec_from_file_location("cli_options", ROOT / "tools" / "cli_options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


options = load_options()


def rows(page: str) -> Iterator[list[str]]:
    """Cells of the rows of all tables of a page."""
    for line in (REFERENCE / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@dataclass(frozen=True, kw_only=True)
class Table:
    heading: str
    lead: str
    """The line before it, empty right under the heading."""
    rows: tuple[list[str], ...]

    @property
    def keys(self) -> set[str]:
        return {key for first, *_ in self.rows for key in re.findall(r"`(\w+)`", first)}


def tables(page: str) -> Iterator[Table]:
    heading = lead = ""
    found: list[list[str]] = []
    for line in [*(REFERENCE / page).read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            continue
        if found:
            yield Table(heading=heading, lead=lead, rows=tuple(found[2:]))
            found, lead = [], ""
        if line.startswith("#"):
            heading, lead = line.lstrip("# "), ""
        elif line:
            lead = line


def commands_named(page: str) -> set[str]:
    """`oncehouse dev up \\| down` names two commands, and so does "`oncehouse etl pause TOPIC`, `resume TOPIC`"."""
    found: set[str] = set()
    for first, *_ in rows(page):
        last: list[str] = []
        for span in re.findall(r"`([^`]+)`", first):
            for alternative in span.split(r" \| "):
                words = list(takewhile(re.compile(r"[a-z][a-z-]*$").match, alternative.split()))
                if words[:1] != ["oncehouse"]:
                    words = [*last[:-1], *words[:1]]
                if last or words[:1] == ["oncehouse"]:
                    found.add(" ".join(words))
                    last = words
    return found


def test_the_reference_names_every_command_and_no_other():
    named = commands_named("cli.md") | commands_named("etl.md")
    there = {words for words, _ in options.list_commands()}
    assert there - named == set()
    groups = {"oncehouse", *(" ".join(words.split()[:count]) for words in there for count in (2, 3))}
    assert named - there - groups == set()


def test_the_page_of_options_has_every_option_of_every_command():
    page = "\n".join(options.write_page())
    for words, command in options.list_commands():
        section = page.partition(f"```text\n{words}")[2].partition("```text")[0]
        assert section, words
        missing = [
            name
            for option in command.params
            for name in option.opts
            if options.is_option(option) and f"`{name}`" not in section
        ]
        assert missing == [], words


def classes(root: type[OncehouseError]) -> Iterator[type[OncehouseError]]:
    yield root
    for below in root.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from classes(below)


def test_the_reference_has_every_error_class_with_its_exit_code():
    told = {cells[0]: cells[1] for cells in rows("errors.md") if cells[0].startswith("`")}
    assert told == {f"`{each.__name__}`": str(each.exit_code) for each in classes(OncehouseError)}


def test_the_reference_has_every_exit_code():
    codes = {int(cells[0]) for cells in rows("cli.md") if cells[0].isdigit()}
    own = {0, 3, command_line.DEFECT_EXIT_CODE, command_line.INTERRUPTED_EXIT_CODE}
    assert codes == own | {each.exit_code for each in classes(OncehouseError)}


def test_the_python_of_the_page_on_errors_runs(capsys):
    block = re.search(
        r"^```python\n(.*?)^```",
        (REFERENCE / "errors.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    exec(compile(block[1], "errors.md", "exec", dont_inherit=True), {})
    assert "correct the file first:" in capsys.readouterr().out


def test_every_key_of_the_pipeline_file_has_a_row_in_the_reference():
    there = set(pipeline_keys(json_schema()))
    assert {"lease", "source.protobuf.registry.url", "tables.batch.sizes", "spark.cache"} <= there
    told = {path for table in tables("pipeline-file.md") for path in told_paths(table)}
    assert told == there


def pipeline_keys(
    schema: dict[str, Any], section: dict[str, Any] | None = None, prefix: str = ""
) -> Iterator[str]:
    """Every key by its path; entries of lists and of maps have that of the list or map."""
    for name, declared in (section or schema)["properties"].items():
        yield f"{prefix}{name}"
        for below in re.findall(r"#/\$defs/(\w+)", json.dumps(declared)):
            yield from pipeline_keys(schema, schema["$defs"][below], f"{prefix}{name}.")


def told_paths(table: Table) -> Iterator[str]:
    """The line before a table names the sections that have its keys; else the heading does."""
    if table.heading in {"Values", "When something is wrong"}:
        return
    named = re.findall(r"`([a-z_]+(?:(?:\[\])?\.[a-z_]+)*(?:\[\])?)`", table.lead) or [table.heading]
    places = [""] if table.heading == "Keys" else [place.replace("[]", "") + "." for place in named]
    for first, default, *_ in table.rows:
        of = [place for place in places if "envelope only" not in default or place.endswith("envelope.")]
        yield from (f"{place}{key}" for place in of for key in re.findall(r"`(\w+)`", first))


def messaging_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        below = next((kind for kind in kinds if issubclass(kind, Section)), None)
        if below is None:
            yield f"{prefix}{name}"
        else:
            yield from messaging_keys(below, f"{prefix}{name}.")


def test_every_key_of_the_messaging_file_has_a_row_in_the_reference():
    told: set[str] = set()
    for first, *_ in rows("messaging-file.md"):
        spans = re.findall(r"`([\w.]+)`", first)
        told |= {span if "." in span else ".".join([*spans[0].split(".")[:-1], span]) for span in spans}
    there = set(messaging_keys(MessagingSettings))
    assert {"kafka.bootstrap_servers", "outbox.relay.lease"} <= there
    assert told == there


def test_every_key_of_the_schedulers_files_has_a_row_in_the_reference():
    sections = {
        ("Settings: `etl.yaml`", ""): EtlSettings,
        ("Settings: `etl.yaml`", "`offsets`:"): Offsets,
        ("Lineage files", ""): TopicSection,
        ("Expectations", ""): ExpectationSection,
    }
    told = {
        (table.heading, table.lead if table.lead.startswith("`offsets`") else ""): table.keys
        for table in tables("etl.md")
    }
    for place, section in sections.items():
        there = {field.alias or name for name, field in section.model_fields.items()}
        assert told[place] == there, place


def test_every_setting_of_model_sync_is_in_its_page():
    page = (ROOT / "docs" / "model-sync.md").read_text(encoding="utf-8")
    there = {sync_settings.PREFIX + name for name in sync_settings._NAMES}
    assert {name for name in there if not re.search(rf"\b{name}\b", page)} == set()
