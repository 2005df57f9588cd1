"""The tables as models, for queries and the admin. Rows are written by `outbox.add` and `inbox.once`, never by models:
those compute buckets, ids and times."""

from __future__ import annotations

from django.db import models

from oncehouse.messaging.outbox.tables import DEFAULT_TABLE


class OutboxRow(models.Model):
    seq = models.BigAutoField(primary_key=True)
    id = models.UUIDField(unique=True)
    bucket = models.SmallIntegerField()
    topic = models.CharField(max_length=249)
    key = models.BinaryField(null=True)
    value = models.BinaryField(null=True)
    headers = models.TextField(null=True)  # noqa: DJ001 - null is how the table says that there are none
    created_at = models.FloatField()
    attempts = models.IntegerField()
    last_error = models.TextField(null=True)  # noqa: DJ001 - as above
    parked_at = models.FloatField(null=True)
    behind = models.UUIDField(null=True)
    sent_at = models.FloatField(null=True)
    sent_partition = models.IntegerField(null=True)
    sent_offset = models.BigIntegerField(null=True)

    class Meta:
        # Created by the app's first migration with the relay's own statements.
        managed = False
        db_table = DEFAULT_TABLE

    def __str__(self) -> str:
        return f"{self.id} for {self.topic}"


class SeenRow(models.Model):
    pk = models.CompositePrimaryKey("consumer", "message_id")
    consumer = models.TextField()
    message_id = models.TextField()
    seen_at = models.FloatField()
    keep_until = models.FloatField()

    class Meta:
        managed = False
        db_table = "oncehouse_inbox_seen"

    def __str__(self) -> str:
        return f"{self.message_id} of {self.consumer}"
