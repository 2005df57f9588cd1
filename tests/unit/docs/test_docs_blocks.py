"""Every block of every page: commands that exist with such options, Python that compiles, YAML and JSON that load.

A net for all pages; further `test_docs_*.py` run the blocks of single ones. What is cut short by "…" cannot be read by
a program and is left out.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from textwrap import dedent
from typing import Any

import pytest
import typer
import yaml

from oncehouse.cli.app import app
from oncehouse.common import structured_logging
from oncehouse.config.file_loader import parse_pipeline
from oncehouse.config.pipeline import Pipeline
from page_shell import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
FENCED = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SHELLS = {"sh", "bash"}
CHECKED = {*SHELLS, "python", "py", "yaml", "json", "avsc"}
SHOWN = {"sql", "text", "proto", "protobuf", "properties", "console", "promql", "csv", "hex", "jsonl"}
"""Statements, files and records of others, and what programs print; test_docs_formats reads the records."""
SECRETS = {"CLICKHOUSE_PASSWORD": "x", "PGPASSWORD": "y", "KAFKA_PASSWORD": "z", "REGISTRY_PASSWORD": "w"}


def named(page) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page, *kinds: str) -> list[str]:
    """Also those inside of lists."""
    found = FENCED.findall(page.read_text(encoding="utf-8"))
    return [dedent(text) for _, kind, text in found if kind in kinds and "…" not in text]


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def commands(page) -> Iterator[list[str]]:
    """The words of each command of ours, up to a pipe, a redirection or the next command."""
    for block in blocks(page, *SHELLS):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            for at, word in enumerate(words):
                if word == "oncehouse" and (
                    at == 0 or set(words[at - 1]) <= set("&|;") or "=" in words[at - 1]
                ):
                    rest = words[at + 1 :]
                    end = next((i for i, one in enumerate(rest) if set(one) <= set("&|;<>()")), len(rest))
                    yield rest[:end]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_of_a_page_are_there_with_their_options(page):
    for words in commands(page):
        command, told = whole_command(), list(words)
        while told and hasattr(command, "commands"):
            if told[0].startswith("-"):
                assert any(told[0] in option.opts for option in command.params), words
                told.pop(0)
            elif told[0] in command.commands:
                command = command.commands[told.pop(0)]
            else:
                assert command.invoke_without_command, f"no such command: {words}"
                break
        if told or not hasattr(command, "commands"):
            command.make_context("oncehouse", told)  # reads arguments and options, and runs nothing
    structured_logging.stop()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_of_a_page_compiles(page):
    for block in blocks(page, "python", "py"):
        # A page may show what stands inside of a coroutine.
        compile(block, named(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_yaml_and_json_of_a_page_load(page):
    for block in blocks(page, "json", "avsc"):
        for document in block.splitlines() if "}\n{" in block else [block]:
            json.loads(document)
    for block in blocks(page, "yaml"):
        loaded = yaml.safe_load(block)
        if isinstance(loaded, dict) and set(loaded) >= {"pipeline", "source", "tables", "clickhouse"}:
            assert isinstance(parse_pipeline(block, named(page), environment=SECRETS), Pipeline)


def test_every_block_is_of_a_kind_that_is_looked_at():
    kinds = {kind for page in PAGES for _, kind, _ in FENCED.findall(page.read_text(encoding="utf-8"))}
    assert kinds <= CHECKED | SHOWN


def test_a_fence_opens_a_block_with_its_language_alone():
    joined = [
        f"{named(page)}: {line.strip()}"
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r" *```\w* +\S", line)
    ]
    assert joined == []
