"""What the commands of `oncehouse inbox` share: the file's settings, the database, and a handler found by its name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from oncehouse.messaging.inbox.opening import InboxDatabase

OneInbox = Annotated[
    str | None,
    typer.Option("--inbox", metavar="NAME", help="Which inbox; not needed where the file has only one."),
]


def open_inbox(file: Path) -> AbstractContextManager[InboxDatabase]:
    from oncehouse.messaging.inbox.opening import open_inbox_database

    return open_inbox_database(file)


def find_handler(text: str) -> Callable[..., Any]:
    """The function that `module:name` means, as Python finds it from the working folder."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"{text!a} is not the name of a handler; write MODULE:FUNCTION, such as shop.billing:bill"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is there and misses another one is its author's to see whole.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"there is no module {error.name!a} on the path; run this in the folder that has it, or set PYTHONPATH"
        ) from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError(f"the module {module_name} has no function {name!a}")
    handler: Callable[..., Any] = found
    return handler
