"""The section `outbox` of the messaging file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from oncehouse.config.pipeline import Section
from oncehouse.messaging.outbox.relay.settings import RelaySettings


def _check_table(name: str) -> str:
    from oncehouse.errors import ConfigurationError
    from oncehouse.messaging.outbox.tables import check_outbox_name

    try:
        return check_outbox_name(name)
    except ConfigurationError as error:
        # pydantic collects ValueErrors; any other error would hide the rest of the file's problems.
        raise ValueError(str(error)) from None


class OutboxSettings(Section):
    table: Annotated[str, AfterValidator(_check_table)] = "oncehouse_outbox"
    """The outbox table, with its schema if it has one: `sales.outbox`."""
    relay: RelaySettings = RelaySettings()
    """Settings of the relay."""
