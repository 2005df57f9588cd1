"""The outbox table as a model, to look at in queries and the admin. Messages are added by `outbox.add`, never here:
buckets and ids are made there."""

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
        # The table is made by the app's first migration with the relay's own statements.
        managed = False
        db_table = DEFAULT_TABLE

    def __str__(self) -> str:
        return f"{self.id} for {self.topic}"
