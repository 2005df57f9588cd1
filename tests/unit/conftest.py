"""A pipeline file and its ledger, for tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger_examples import IDENTITY
from oncehouse.config.file_loader import example_text
from oncehouse.ledger.catalog.database import Catalog


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(example_text())
    return path


@pytest.fixture
def catalog(file: Path) -> Iterator[Catalog]:
    opened = Catalog(f"sqlite:///{file.parent}/ledger/catalog.db", "events")
    opened.prepare()
    opened.adopt(IDENTITY)
    yield opened
    opened.close()
