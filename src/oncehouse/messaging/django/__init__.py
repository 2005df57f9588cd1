"""The outbox as a Django app: put `oncehouse.messaging.django` into INSTALLED_APPS and run `migrate`.

`from oncehouse.messaging.django import outbox` then writes messages in Django's own transactions. The table is the one
that the relay knows, made by the same statements as `oncehouse outbox init`.
"""
