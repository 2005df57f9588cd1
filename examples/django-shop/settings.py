"""Settings of the shop. Addresses come from the environment: PostgreSQL's own names, REDIS_PORT and CLICKHOUSE_URL."""

from __future__ import annotations

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "oncehouse.sync.django"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("PGHOST", "127.0.0.1"),
        "PORT": os.environ.get("PGPORT", "5432"),
        "USER": os.environ.get("PGUSER", "postgres"),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "NAME": os.environ.get("PGDATABASE", "shop"),
    }
}

CLICKHOUSE_DATABASES = {
    "default": {"db_url": os.environ.get("CLICKHOUSE_URL", "http://127.0.0.1:8123"), "db_name": "shop"}
}
CLICKHOUSE_REDIS_CONFIG = {
    "host": os.environ.get("REDIS_HOST", "127.0.0.1"),
    "port": int(os.environ.get("REDIS_PORT", "6379")),
}
CLICKHOUSE_SYNC_DELAY = 1  # seconds; five, if nothing is said
