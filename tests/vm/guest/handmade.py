# SPDX-License-Identifier: Apache-2.0
"""Cgroups made by hand, with workloads in them: any spelling of a path, and hundreds of lives in seconds.

Owns the directories it made. There is no runtime behind them: a case that wants names gives its own CRI server.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm.guest import tally

CGROUP_ROOT = Path("/sys/fs/cgroup")
ENTER = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


@contextmanager
def cgroup(path: str) -> Iterator[Path]:
    """A cgroup of this path (below the root, beginning with /) and what was missing above it, for the block."""
    target = CGROUP_ROOT / path.lstrip("/")
    missing = [level for level in (target, *target.parents) if not level.exists()]
    for level in reversed(missing):
        level.mkdir()
    try:
        yield target
    finally:
        for level in missing:
            level.rmdir()


def run(path: str, *args: str) -> tally.Tally:
    """Run the workload in this cgroup to its end; it has never been in another one when it makes its first call."""
    command = ["sh", "-c", ENTER, str(CGROUP_ROOT / path.lstrip("/")), str(tally.WORKLOAD), *args]
    return tally.parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
