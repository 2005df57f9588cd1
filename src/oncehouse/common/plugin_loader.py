"""Modules that a user names: found from the working folder, as Python would, and their errors reported as theirs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from oncehouse.errors import ConfigurationError


def import_user_module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"there is no module {error.name!a} on the path; run this in the folder that has it, or set PYTHONPATH"
            ) from None
        raise _describe_broken(name, error) from error
    except Exception as error:
        # The module is the user's code: what it raises is no defect of ours, whatever it is.
        raise _describe_broken(name, error) from error


def _describe_broken(name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the module {name} cannot be imported: {type(error).__name__}: {error}. "
        f"`python -c 'import {name}'` shows where"
    )
