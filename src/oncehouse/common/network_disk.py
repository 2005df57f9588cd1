"""SQLite files on network disks, which are refused.

SQLite keeps the index of its write-ahead log in memory that the processes of one machine share. Two machines that open
one file on a network disk each have an index of their own: neither sees the other's locks and last transactions, so
two processes may both hold a lease, and may damage the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oncehouse.common.database import database_file
from oncehouse.errors import ConfigurationError

_MOUNT_TABLE = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
# As the kernel names them; of file systems in user space, those that are made for a network.
_KERNEL_TYPES = (
    "nfs nfs4 cifs smb3 smbfs 9p ceph glusterfs lustre beegfs gpfs afs ocfs2 gfs2 orangefs panfs wekafs coda"
)
_USER_SPACE = (
    "glusterfs sshfs ceph ceph-fuse s3fs goofys gcsfuse rclone juicefs mfs lizardfs smbnetfs blobfuse2"
)
NETWORK_TYPES = frozenset((*_KERNEL_TYPES.split(), *(f"fuse.{name}" for name in _USER_SPACE.split())))


@dataclass(frozen=True, kw_only=True)
class Mount:
    point: Path
    type: str


def refuse_network_disk(url: str, *, setting: str) -> None:
    """Raise ConfigurationError where the URL, which `setting` names, is of a SQLite file on a network disk."""
    path = database_file(url)
    if path is None or str(path).startswith("file:"):
        return
    # The link's target counts, not the link. A folder that is not there yet is made on the disk of its parent.
    path = path.resolve()
    mount = find_mount(path, parse_mounts(read_mount_table()))
    if mount is not None and mount.type in NETWORK_TYPES:
        raise ConfigurationError(
            f"{setting}: the SQLite file {path} is on a network disk ({mount.type}, mounted at {mount.point}). Two "
            "machines would not see each other's locks and last transactions there: both could go to work, and the "
            "file could be damaged.\nStop all processes that use it, move the file and those next to it that have its "
            f"name (-wal, -shm) to a disk of this machine, and name the new place in {setting}; or use PostgreSQL "
            "(postgresql+psycopg://…), which several machines may share."
        )


def read_mount_table() -> tuple[str, ...]:
    """Nothing where this system has none."""
    try:
        return tuple(_MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
    except OSError:
        return ()


def parse_mounts(lines: Iterable[str]) -> Iterator[Mount]:
    """Of lines such as `36 35 98:0 / /mnt/my\\040disk rw,noatime shared:1 - nfs4 server:/export rw`."""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if len(fields) > 4 and described[0]:
            point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
            yield Mount(point=Path(point), type=described[0])


def find_mount(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """The one that holds the path: the innermost, and of several at one point the last, which hides the others."""
    found: Mount | None = None
    for mount in mounts:
        if path.is_relative_to(mount.point) and (
            found is None or len(mount.point.parts) >= len(found.point.parts)
        ):
            found = mount
    return found
