"""Outbox and inbox as a Django app: put `oncehouse.messaging.django` into INSTALLED_APPS and run `migrate`.

`from oncehouse.messaging.django import inbox, outbox` then writes messages in Django's own transactions, and remembers
there which ones were handled. The tables are those that relay and workers know, made by the same statements as by
`oncehouse outbox init` and `oncehouse inbox init`.
"""

__all__ = ["inbox", "outbox"]  # modules, imported when Django is set up
