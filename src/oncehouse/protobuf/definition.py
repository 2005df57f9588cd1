"""Definitions: a protobuf message with everything it needs, as one text that the ledger can keep.

`.proto` files are compiled on the driver by the protoc inside grpcio-tools; descriptor sets are taken as they
are. What comes out is the same either way: the files that the message needs, without comments and positions,
and the name of the message. Workers only ever see that text.
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from oncehouse.common.extras import needs_extra
from oncehouse.errors import ConfigurationError

_PROTOC_SECONDS = 120
_MAIN = "main.proto"
_OWN_FILES = Path(__file__).parent / "include"


@dataclass(frozen=True, kw_only=True)
class Definition:
    message: str
    """Full name of the message, with its package."""
    descriptor_set: bytes

    def to_text(self) -> str:
        packed = base64.b64encode(self.descriptor_set).decode()
        return json.dumps({"message": self.message, "descriptor_set": packed})


def read_definition(text: str) -> Definition:
    """What `Definition.to_text` has written."""
    try:
        found = json.loads(text)
        packed = base64.b64decode(found["descriptor_set"], validate=True)
        return Definition(message=str(found["message"]), descriptor_set=packed)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise ConfigurationError(
            'a protobuf definition is JSON with "message" and "descriptor_set" (base64); this text is not'
        ) from None


def load_definition(
    *, files: Sequence[str] = (), include: Sequence[str] = (), descriptor_set: str | None = None, message: str
) -> Definition:
    """A message out of `.proto` files, compiled here, or out of a descriptor set."""
    if descriptor_set is not None:
        return pick_message(_read_set(descriptor_set), message, where=descriptor_set)
    changed = tuple(Path(file).stat().st_mtime_ns if Path(file).is_file() else 0 for file in files)
    return _compile_once(tuple(files), tuple(include), message, changed)


@cache
def _compile_once(
    files: tuple[str, ...], include: tuple[str, ...], message: str, changed: tuple[int, ...]
) -> Definition:
    """A pipeline asks for its schemas many times; protoc takes a tenth of a second each time."""
    del changed  # when the files were written, so that changed files are compiled again
    return pick_message(compile_files(files, include), message, where=", ".join(files))


def pick_message(serialized: bytes, message: str, *, where: str) -> Definition:
    """The message with only the files it needs, so that a change elsewhere makes no new definition."""
    try:
        found = FileDescriptorSet.FromString(serialized)
    except DecodeError:
        raise ConfigurationError(f"{where}: is no descriptor set; write one with protoc -o") from None
    message = message.removeprefix(".")
    descriptor = _find_message(_pool_of(found, where), found, message, where)
    needed = _needed_files(descriptor)
    kept = FileDescriptorSet()
    for file in found.file:
        if file.name in needed:
            kept.file.add().CopyFrom(file)
            kept.file[-1].ClearField("source_code_info")
    return Definition(message=message, descriptor_set=kept.SerializeToString(deterministic=True))


def describe(definition: Definition) -> Descriptor:
    found = FileDescriptorSet.FromString(definition.descriptor_set)
    return _find_message(_pool_of(found, definition.message), found, definition.message, "the definition")


@lru_cache(maxsize=256)
def describe_text(text: str) -> Descriptor:
    """The message of a text of `to_text`; kept, because the driver asks for the same ones before each epoch."""
    return describe(read_definition(text))


def describe_all(texts: Iterable[str]) -> list[Descriptor]:
    return [describe_text(text) for text in texts]


def _needed_files(descriptor: Descriptor) -> set[str]:
    needed: set[str] = set()
    waiting = [descriptor.file]
    while waiting:
        file = waiting.pop()
        if file.name not in needed:
            needed.add(file.name)
            waiting += file.dependencies
    return needed


def _pool_of(found: FileDescriptorSet, where: str) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    by_name = {file.name: file for file in found.file}
    added: set[str] = set()

    def add(file: FileDescriptorProto) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for dependency in file.dependency:
            if dependency not in by_name:
                raise ConfigurationError(
                    f"{where}: {dependency} is missing, which {file.name} imports; "
                    "write the descriptor set with protoc --include_imports"
                )
            add(by_name[dependency])
        pool.AddSerializedFile(file.SerializeToString())

    try:
        for file in found.file:
            add(file)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: the descriptors contradict each other: {error}") from None
    return pool


def _find_message(
    pool: descriptor_pool.DescriptorPool, found: FileDescriptorSet, message: str, where: str
) -> Descriptor:
    try:
        descriptor: Descriptor = pool.FindMessageTypeByName(message)
    except KeyError:
        known = [
            f"{file.package}.{top.name}".removeprefix(".")
            for file in found.file
            if not file.package.startswith("google.protobuf")
            for top in file.message_type
        ]
        raise ConfigurationError(
            f"{where}: there is no message {message!r}; there are {', '.join(sorted(known)[:20])}"
        ) from None
    return descriptor


def _read_set(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None


def compile_files(files: Sequence[str], include: Sequence[str] = ()) -> bytes:
    """The descriptor set of `.proto` files and all that they import; well-known types are at hand."""
    paths = [Path(file).absolute() for file in files]
    for path in paths:
        if not path.is_file():
            raise ConfigurationError(f"{path}: no such file; correct the path")
    roots = [Path(folder).absolute() for folder in include] or [path.parent for path in paths]
    return _run_protoc(paths, list(dict.fromkeys(roots)), source=", ".join(files))


def compile_texts(text: str, imports: Mapping[str, str], indexes: Sequence[int]) -> Definition:
    """A message out of the text of a file; `indexes` lead to it through nested ones."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, imported in imports.items():
            _write_inside(root, name, imported)
        main = _write_inside(root, _MAIN, text)
        serialized = _run_protoc([main], [root], source="the text")
    found = FileDescriptorSet.FromString(serialized)
    file = next(file for file in found.file if file.name == _MAIN)
    name, level = file.package, file.message_type
    for index in indexes:
        name, level = f"{name}.{level[index].name}", level[index].nested_type
    return pick_message(serialized, name, where="the text")


def _write_inside(root: Path, name: str, text: str) -> Path:
    """Names come from a registry, and must not lead out of the folder."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()) or path == root.resolve():
            raise ValueError("it leads elsewhere")  # noqa: TRY301 - one answer to all that a name can be
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"a schema refers to {name!r}, which is no name of a file: {error}"
        ) from None
    return path


def _run_protoc(paths: Sequence[Path], roots: Sequence[Path], *, source: str) -> bytes:
    with needs_extra("protobuf", "a .proto file"):
        import grpc_tools  # noqa: F401 - protoc is started as a process of its own
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{root}" for root in (*roots, _OWN_FILES))]
        command += ["--include_imports", f"--descriptor_set_out={out}", *map(str, paths)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_PROTOC_SECONDS,
                check=False,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"protoc could not compile {source}: {error}") from None
        if done.returncode:
            raise ConfigurationError(f"protoc refuses {source}: {done.stderr.strip()}")
        return out.read_bytes()
