"""The public names of messaging, and what looking at them costs."""

import subprocess
import sys

import pytest

from oncehouse import messaging


@pytest.mark.parametrize("name", messaging.__all__)
def test_every_public_name_is_there(name):
    assert getattr(messaging, name).__name__ == name


def test_a_name_that_is_not_there_is_told():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = messaging.Nothing


def test_a_name_whose_package_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "oncehouse.messaging.inbox.redis_inbox", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'oncehouse\[redis\]'"):
        _ = messaging.RedisInbox


def test_importing_messaging_loads_no_driver():
    loaded = "import oncehouse.messaging, sys; print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "confluent_kafka", "django", "redis"} & set(modules.stdout.split())
