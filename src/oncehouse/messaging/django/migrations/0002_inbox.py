"""Makes the tables of the inbox by the statements of `oncehouse inbox init`."""

from __future__ import annotations

from django.db import migrations, models

from oncehouse.messaging.django.operations import CreateInbox


class Migration(migrations.Migration):
    dependencies = (("oncehouse_messaging", "0001_outbox"),)
    operations = (
        CreateInbox(),
        migrations.CreateModel(
            name="SeenRow",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "consumer",
                        "message_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("consumer", models.TextField()),
                ("message_id", models.TextField()),
                ("seen_at", models.FloatField()),
                ("keep_until", models.FloatField()),
            ],
            options={"db_table": "oncehouse_inbox_seen", "managed": False},
        ),
    )
