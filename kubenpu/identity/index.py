# SPDX-License-Identifier: Apache-2.0
"""Names of cgroups by their id, from the mounted cgroup2 file system: for ids whose name the kernel could not capture.

Owns one table, id -> path, replaced as a whole by each walk. Its data are directory entries only: the inode number
of a cgroup directory is the id that eBPF sees (64-bit kernels since 5.5). It refuses to open control files, to follow
links and to give up because a directory vanished or may not be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kubenpu.model.errors import ConfigError, KernelError
from kubenpu.model.mounts import find_mount

ROOT_CGROUP_ID = 1
GONE_MAX = 65536


class CgroupIndex:
    """Paths of the cgroups below one mount, relative to it (`/` is the mount itself). `rebuilds` counts the walks."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self._paths: dict[int, str] = {}
        self._gone: set[int] = set()
        self._unread: list[str] = []
        self.rebuilds = 0

    @property
    def complete(self) -> bool:
        """Whether the last walk saw the whole tree. A path longer than PATH_MAX, for one, cannot be walked."""
        return not self._unread

    def path(self, cgroup_id: int) -> str | None:
        """The path of a cgroup that was seen at work, None when it is gone.

        Walks only for an id that it has not been asked about: ids are not reused, so what is gone stays gone.
        """
        if cgroup_id not in self._paths and cgroup_id not in self._gone:
            self._unread = []
            self._paths = dict(_walk(self._mount, self._unread))
            self.rebuilds += 1
            if cgroup_id not in self._paths:
                if len(self._gone) >= GONE_MAX:
                    self._gone.clear()
                self._gone.add(cgroup_id)
        return self._paths.get(cgroup_id)


def cgroup_mount(configured: str) -> Path:
    """Where the hierarchy is: the setting identity.cgroup_root, "" to look for it. ConfigError, KernelError without."""
    if configured:
        if not (Path(configured) / "cgroup.controllers").is_file():
            raise ConfigError(
                f"identity.cgroup_root: {configured} is not a cgroup version 2 hierarchy",
                "Name the mount point of type cgroup2 (findmnt -t cgroup2), or leave the setting out",
            )
        return Path(configured)
    mount = find_mount(Path("/proc/self/mounts").read_text(), "cgroup2")
    if mount is None:
        raise KernelError(
            "no cgroup version 2 hierarchy is mounted",
            "Boot with systemd.unified_cgroup_hierarchy=1; on version 1 pods cannot be told apart",
        )
    return mount


def sees_whole_tree(mount: Path) -> bool:
    """Whether the mount shows the host's root cgroup. If not, this process is in a cgroup namespace (kind, k3d)."""
    try:
        return mount.stat().st_ino == ROOT_CGROUP_ID
    except OSError:
        return False


def alive(mount: Path, path: str, cgroup_id: int) -> bool:
    """Whether the cgroup still exists: its path leads to the same id. What may not be looked at counts as alive."""
    try:
        return (mount / path.lstrip("/")).stat().st_ino == cgroup_id
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True


def _walk(mount: Path, unread: list[str]) -> Iterator[tuple[int, str]]:
    """Every cgroup of the tree. One that went away is left out; one that cannot be read goes to `unread`."""
    try:
        yield mount.stat().st_ino, "/"
    except OSError:
        return
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(mount / above.lstrip("/")) as entries:
                children = [(entry.inode(), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            continue
        except OSError:
            unread.append(above)
            continue
        for inode, name in children:
            yield inode, f"{above}/{name}"
            waiting.append(f"{above}/{name}")
