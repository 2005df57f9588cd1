"""Runs programs as a pod of the chart or a unit of systemd would: on a read-only root, without capabilities, filtered.

By bubblewrap, whose root is this machine's, for there are no containers here. What a unit's `SystemCallFilter` and
`RestrictAddressFamilies` say becomes the same filter in the kernel, with the sets of calls that systemd itself tells.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

USER = 10001
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_EQUAL = 4


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def missing_programs() -> list[str]:
    """What has to be installed for this; nothing where all of it is."""
    missing = [name for name in ("bwrap", "systemd-analyze") if shutil.which(name) is None]
    return missing if ctypes.util.find_library("seccomp") else [*missing, "libseccomp"]


def confine(folder: Path, writable: dict[str, Path], *, home: str) -> list[str]:
    """The words before a command: `writable` maps places to folders, everything else of this machine is read-only.

    The command runs as a user of its own with this `home`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    passwd = folder / "passwd"
    passwd.write_text(f"root:x:0:0::/root:/bin/sh\noncehouse:x:{USER}:{USER}::{home}:/bin/sh\n")
    words = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    words += ["--ro-bind", str(passwd), "/etc/passwd"]
    # Places that this machine lacks, below an empty folder in place of the one that is here.
    hidden = sorted({str(nearest_folder(Path(place))) for place in writable if not Path(place).exists()})
    for above in hidden:
        words += ["--tmpfs", above]
    for place, kept in writable.items():
        kept.mkdir(parents=True, exist_ok=True)
        words += ["--bind", str(kept), place]
    for above in hidden:
        words += ["--remount-ro", above]
    words += ["--unshare-user", "--uid", str(USER), "--gid", str(USER), "--cap-drop", "ALL"]
    return [*words, "--setenv", "HOME", home, "--chdir", home]


def nearest_folder(place: Path) -> Path:
    return next(above for above in place.parents if above.exists())


def read_service(unit: Path) -> dict[str, list[str]]:
    """Every line of a unit's service: several of one name stand for a list."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().split("[Service]")[1].split("[Install]")[0].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def filter_of(unit: Path) -> int:
    """What the unit leaves of the system's calls, as systemd reads it."""
    service = read_service(unit)
    allowed, refused = service["SystemCallFilter"]
    calls = system_calls(["@default", *allowed.split()]) - system_calls(refused.removeprefix("~").split())
    return write_filter(calls, service["RestrictAddressFamilies"][0].split())


def system_calls(names: Sequence[str]) -> set[str]:
    """The calls of systemd's sets, such as `@system-service`, with the sets in them."""
    found: set[str] = set()
    for name in names:
        if not name.startswith("@"):
            found.add(name)
            continue
        told = subprocess.run(
            ["systemd-analyze", "syscall-filter", "--no-pager", name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        inner = [line.strip() for line in told.splitlines()[1:]]
        found |= system_calls([word for word in inner if word and not word.startswith("#")])
    return found


def write_filter(allowed: set[str], families: Sequence[str]) -> int:
    """A descriptor with the filter for `bwrap --seccomp`: other calls, and sockets of other families, are refused."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_REFUSE))
    for name in sorted(allowed - {"socket"}):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            assert library.seccomp_rule_add_array(context, _ALLOW, number, 0, None) == 0, name
    number = library.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        compared = _Comparison(0, _EQUAL, int(getattr(socket, family)), 0)
        assert library.seccomp_rule_add_array(context, _ALLOW, number, 1, ctypes.byref(compared)) == 0
    with tempfile.TemporaryFile() as file:
        assert library.seccomp_export_bpf(context, file.fileno()) == 0
        library.seccomp_release(context)
        handle = os.dup(file.fileno())
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
