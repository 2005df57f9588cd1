"""What `make audit` says: nothing passes because nobody looked."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def audit():
    spec = importlib.util.spec_from_file_location("audit_tool", ROOT / "tools" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOUND = {"name": "sound", "version": "1", "vulns": []}
WEAK = {"name": "weak", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


def answer(audit, monkeypatch, **services: list | None) -> None:
    """Let the services answer: with packages, or not at all."""

    def run(command: list[str]) -> SimpleNamespace:
        packages = services[command[command.index("--vulnerability-service") + 1]]
        out = "" if packages is None else json.dumps({"dependencies": packages})
        return SimpleNamespace(stdout=out, stderr="name cannot be resolved", returncode=1)

    monkeypatch.setattr(audit, "run", run)
    monkeypatch.setattr(audit, "write_materials", lambda: None)
    monkeypatch.setattr(audit, "check_source", lambda: 0)


def test_sound_packages_are_well(audit, monkeypatch, capsys):
    answer(audit, monkeypatch, pypi=[SOUND], osv=None)
    assert audit.main() == 0
    assert "1 packages looked up, 0 of them vulnerable" in capsys.readouterr().out


def test_a_vulnerable_package_is_named_with_the_version_that_mends_it(audit, monkeypatch, capsys):
    answer(audit, monkeypatch, pypi=[SOUND, WEAK], osv=None)
    assert audit.main() == audit.VULNERABLE
    assert "weak 1: CVE-1, fixed in 2" in capsys.readouterr().out


def test_a_package_that_no_service_knows_is_not_audited_and_that_is_said(audit, monkeypatch, capsys):
    answer(audit, monkeypatch, pypi=[SOUND, UNKNOWN], osv=None)
    assert audit.main() == audit.NOT_AUDITED
    assert "NOT AUDITED: no service answered for 1 packages (unknown)" in capsys.readouterr().err


def test_the_second_service_is_asked_for_what_the_first_does_not_know(audit, monkeypatch, capsys):
    found = WEAK | {"name": "unknown"}
    answer(audit, monkeypatch, pypi=[SOUND, UNKNOWN], osv=[SOUND, found])
    assert audit.main() == audit.VULNERABLE


def test_services_that_are_both_away_are_no_audit(audit, monkeypatch, capsys):
    answer(audit, monkeypatch, pypi=None, osv=None)
    assert audit.main() == audit.NOT_AUDITED
    assert "no service answered for any packages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "justified"),
    [
        ('x = f"SELECT {a}"  # noqa: S608 - quoted', True),
        ('x = f"SELECT {a}"  # noqa: S311 - of another kind', False),
        ('x = f"SELECT {a}"', False),
    ],
)
def test_a_finding_is_justified_by_a_reason_of_its_own_kind_in_its_place(
    text, justified, audit, tmp_path, monkeypatch
):
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(f"import os\n{text}\n")
    finding = {"test_id": "B608", "filename": "a.py", "line_number": 2, "line_range": [2]}
    assert audit.is_justified(finding) is justified
