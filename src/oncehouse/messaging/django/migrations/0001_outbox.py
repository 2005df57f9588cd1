"""Makes the outbox table and those of its relays by the statements of `oncehouse outbox init`."""

from __future__ import annotations

from django.db import migrations, models

from oncehouse.messaging.django.operations import CreateOutbox


class Migration(migrations.Migration):
    initial = True
    dependencies: tuple[()] = ()
    operations = (
        CreateOutbox(),
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                ("id", models.UUIDField(unique=True)),
                ("bucket", models.SmallIntegerField()),
                ("topic", models.CharField(max_length=249)),
                ("key", models.BinaryField(null=True)),
                ("value", models.BinaryField(null=True)),
                ("headers", models.TextField(null=True)),
                ("created_at", models.FloatField()),
                ("attempts", models.IntegerField()),
                ("last_error", models.TextField(null=True)),
                ("parked_at", models.FloatField(null=True)),
                ("behind", models.UUIDField(null=True)),
                ("sent_at", models.FloatField(null=True)),
                ("sent_partition", models.IntegerField(null=True)),
                ("sent_offset", models.BigIntegerField(null=True)),
            ],
            options={"db_table": "oncehouse_outbox", "managed": False},
        ),
    )
