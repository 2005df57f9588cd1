"""What the commands of `oncehouse inbox` share: the file's settings, the database, and a handler found by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncehouse.common.plugin_loader import import_user_module
from oncehouse.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from oncehouse.messaging.inbox.open import InboxDatabase

OneInbox = Annotated[
    str | None,
    typer.Option("--inbox", metavar="NAME", help="Which inbox; not needed where the file has only one."),
]


def open_inbox(file: Path) -> AbstractContextManager[InboxDatabase]:
    from oncehouse.messaging.inbox.open import open_inbox_database
    from oncehouse.messaging.settings import load_messaging

    settings = load_messaging(file)
    return open_inbox_database(settings.require_database(), settings.inbox)


def find_handler(text: str) -> Callable[..., Any]:
    """The function that `module:name` means, as Python finds it from the working folder."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"{text!a} is not the name of a handler; write MODULE:FUNCTION, such as shop.billing:bill"
        )
    found: Any = import_user_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError(f"the module {module_name} has no function {name!a}")
    handler: Callable[..., Any] = found
    _check_arguments(handler, text)
    return handler


def _check_arguments(handler: Callable[..., Any], text: str) -> None:
    """A handler that cannot be called at all would fail on every message until all are parked."""
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(
            f"{text} is called with (session, message), which it does not take: {error}"
        ) from None
    except ValueError:
        return  # written in C, and does not say what it takes
