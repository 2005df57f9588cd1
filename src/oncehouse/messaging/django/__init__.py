"""Outbox and inbox as a Django app: add `oncehouse.messaging.django` to INSTALLED_APPS and run `migrate`.

    from oncehouse.messaging.django import inbox, outbox

writes messages in Django's own transactions, and stores there which messages were handled. The public modules are
`inbox` and `outbox`; the models `OutboxRow` and `SeenRow` are for queries and the admin. The tables are those of relays
and workers, created by the same statements as by `oncehouse outbox init` and `oncehouse inbox init`.
"""

__all__ = ["inbox", "outbox"]  # modules, imported when Django is set up


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
