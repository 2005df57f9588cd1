"""Makes the tables of model sync by the statements of `oncehouse sync init`."""

from __future__ import annotations

from django.db import migrations

from oncehouse.sync.django.operations import CreateSyncTables


class Migration(migrations.Migration):
    initial = True
    dependencies: tuple[()] = ()
    operations = (CreateSyncTables(),)
