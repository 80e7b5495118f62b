"""Which file system a path lies on: a store's write-ahead log needs memory that only one machine's processes share."""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK = frozenset(
    "nfs nfs3 nfs4 cifs smb smb2 smb3 smbfs ncpfs 9p afs coda lustre gpfs beegfs ceph glusterfs orangefs pvfs2 ocfs2 "
    "gfs2 panfs fhgfs moosefs".split()
) | frozenset(
    f"fuse.{name}"
    for name in "sshfs nfs ceph ceph-fuse glusterfs lizardfs moosefs mfs juicefs rclone s3fs gcsfuse goofys davfs2 "
    "smbnetfs beegfs quobyte weed seaweedfs objectivefs".split()
)
MOUNTS = "/proc/self/mountinfo"


def network_type(path: str | os.PathLike, mounts: str | None = None) -> str | None:
    """The type of the network file system that `path` lies on; None if it is a local one or cannot be told.

    Parameters
    ----------
    path : path
        A file or folder; it need not be there.
    mounts : str, optional
        The table of mounts in the form of ``/proc/self/mountinfo``, which is read if none is given. Other systems than
        Linux have no such table, so that nothing is known there.
    """
    if mounts is None:
        try:
            mounts = Path(MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    place, longest, found = os.path.realpath(path), -1, None
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])  # a space is \040
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of two at one point the later one covers the earlier
            longest, found = len(point), kind
    return found if found in NETWORK else None
