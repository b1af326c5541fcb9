# SPDX-License-Identifier: Apache-2.0
"""Real cgroups of the simulated node: one tree of its own below the cgroup2 mount, and the processes in it.

Every process of the simulation is started into this tree, so what is left of a killed run is found and ended by its
cgroup, not by a name. Owns the tree from make() to remove(); touches no other cgroup and no controller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from kubenpu.model.errors import KernelError
from kubenpu.model.mounts import find_mount

_END_SECONDS = 10.0
# The shell puts itself into the cgroup and becomes the command: nothing of it ever runs outside.
_LAUNCHER = ("/bin/sh", "-c", 'echo 0 >"$0" && exec "$@"')


class CgroupTree:
    """`name` is one directory below the mount."""

    def __init__(self, mount: Path, name: str) -> None:
        self.root = mount / name

    def make(self, cgroup: str) -> Path:
        """Makes one cgroup and those above it; fine when it exists."""
        path = self.root / cgroup
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise KernelError(
                f"cannot create the cgroup {path}: {e.strerror}", "Run as root outside a container"
            ) from e
        return path

    def start(self, cgroup: str, command: Sequence[str], quiet: bool = False) -> subprocess.Popen[str]:
        """Starts a command inside a cgroup. `quiet`: its standard output is thrown away."""
        procs = self.make(cgroup) / "cgroup.procs"
        return subprocess.Popen(
            [*_LAUNCHER, str(procs), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else None,
            start_new_session=True,  # Ctrl-C is for us alone, we end the others in order
            text=True,
        )

    def processes(self) -> list[int]:
        """Ids of all processes in the tree."""
        found = []
        for directory in self._directories():
            try:
                found += [int(line) for line in (directory / "cgroup.procs").read_text().split()]
            except OSError:
                continue  # the cgroup went away
        return found

    def remove(self) -> None:
        """Kills what still runs in the tree and removes it. KernelError when that does not work within seconds."""
        deadline = time.monotonic() + _END_SECONDS
        while self.root.is_dir():
            for pid in self.processes():
                _kill(pid)
            for directory in self._directories():
                try:
                    directory.rmdir()
                except OSError:
                    continue  # a process in it is still ending
            if not self.root.is_dir():
                return
            if time.monotonic() > deadline:
                raise KernelError(f"{self.root} cannot be removed", "See which processes are left in it")
            time.sleep(0.02)

    def _directories(self) -> list[Path]:
        """All cgroups of the tree, the deepest first, the tree's root last."""
        return [Path(path) for path, _, _ in os.walk(self.root, topdown=False)]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def cgroup2_mount() -> Path:
    """Where cgroup2 is mounted: /sys/fs/cgroup, on hybrid hosts /sys/fs/cgroup/unified."""
    mount = find_mount(Path("/proc/self/mounts").read_text(), "cgroup2")
    if mount is None:
        raise KernelError(
            "no cgroup version 2 hierarchy is mounted",
            "Run: mkdir /run/cgroup2 && mount -t cgroup2 cgroup2 /run/cgroup2, or boot without cgroup version 1",
        )
    return mount
