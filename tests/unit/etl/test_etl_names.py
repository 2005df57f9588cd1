"""What users import from: completion lists the public names, and each of them can be had."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("package", ["oncehouse.etl"])
def test_every_public_name_can_be_imported_and_is_completed(package):
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing
