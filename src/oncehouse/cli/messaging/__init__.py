"""Commands of `oncehouse outbox`, `inbox`, `dlq` and `cdc`: one module for each, with the name of the command group.

Start in `outbox.py` or `inbox.py`; modules with their name as a prefix hold single commands (`outbox_relay.py`,
`inbox_run.py`). All of them read `messaging.yaml`. The work is done in `oncehouse.messaging`.
"""
