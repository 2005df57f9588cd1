"""The ledger's files behind an S3 API: the same promises as in a folder, and the whole pipeline on them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from live_pipeline import make_event
from oncehouse.errors import ConfigurationError, CorruptFileError
from oncehouse.ledger.storage.file_store import FileStore

BUCKET = "ledger"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint, monkeypatch, tmp_path):
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://{s3_endpoint}", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield client
    for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
    client.delete_bucket(Bucket=BUCKET)


@pytest.fixture
def root(bucket, s3_endpoint) -> str:
    # Keys in the address, for the workers of the shared Spark session were started before this test.
    return f"s3://test:test@{BUCKET}/oncehouse?endpoint_override={s3_endpoint}&scheme=http&region=us-east-1"


@pytest.fixture
def store(root, monkeypatch, tmp_path) -> FileStore:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return FileStore(root)


def put(store: FileStore, path: str, text: bytes):
    return store.put(path, lambda local: Path(local).write_bytes(text))


def test_a_file_in_a_bucket_can_be_read_listed_and_deleted(store):
    file = put(store, "p/0000000/1-a", b"rows")
    again = pickle.loads(pickle.dumps(store))
    assert again.local(file).read_bytes() == b"rows"
    store.verify(file)
    assert list(store.walk("p/")) == ["p/0000000/1-a"]
    store.delete(file.path)
    store.delete(file.path)
    assert list(store.walk("p/")) == []


def test_a_small_object_is_replaced(store):
    for content in (b"first", b"second"):
        store.replace("marks/1", content)
    assert store.read_bytes("marks/1") == b"second"
    assert abs(store.modified_at("marks/1") - time.time()) < 60
    assert store.modified_at("marks/2") is None
    assert list(store.walk("marks")) == ["marks/1"]
    store.delete("marks/1")
    assert list(store.walk("marks")) == []


def test_a_changed_or_missing_object_is_named(store, bucket):
    file = put(store, "p/a", b"rows")
    bucket.put_object(Bucket=BUCKET, Key="oncehouse/p/a", Body=b"wors")
    with pytest.raises(CorruptFileError, match="p/a does not match its checksum"):
        store.verify(file)
    with pytest.raises(CorruptFileError, match="p/a does not match its checksum"):
        store.local(file)
    bucket.delete_object(Bucket=BUCKET, Key="oncehouse/p/a")
    with pytest.raises(CorruptFileError, match="p/a is missing"):
        store.local(file)


def test_a_bucket_that_is_not_there_is_told_without_its_keys(s3_endpoint, bucket):
    address = f"s3://test:secret@nowhere/x?endpoint_override={s3_endpoint}&scheme=http&region=us-east-1"
    with pytest.raises(ConfigurationError, match=r"ledger\.files") as told:
        FileStore(address).check()
    assert "secret" not in str(told.value)


def test_the_whole_pipeline_runs_with_its_files_in_a_bucket(make_pipeline, root):
    live_pipeline = make_pipeline(partitions=2, ledger={"files": root})
    live_pipeline.send([make_event(number) for number in range(120)])
    live_pipeline.run()
    live_pipeline.send([make_event(number) for number in range(60, 200)], partition=1)
    live_pipeline.run()
    live_pipeline.assert_exact()


def test_copies_of_a_bucket_take_no_more_room_than_the_bound(store, monkeypatch, tmp_path):
    monkeypatch.setenv("ONCEHOUSE_CACHE_BYTES", "30")
    files = [put(store, f"p/{number}", f"rows of {number}".encode()) for number in range(9)]
    for file in (*files, files[0]):
        assert store.checked(file).read_bytes() == b"rows of " + file.path[-1:].encode()
    (cache,) = tmp_path.glob("oncehouse-cache-*")
    assert {path.name for path in cache.iterdir()} == {
        ".lock",
        files[7].checksum,
        files[8].checksum,
        files[0].checksum,
    }


def test_a_copy_that_was_changed_on_this_machine_is_fetched_again(store):
    file = put(store, "p/a", b"rows")
    store.local(file).write_bytes(b"wors")
    assert store.checked(file).read_bytes() == b"rows"
