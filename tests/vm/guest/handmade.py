# SPDX-License-Identifier: Apache-2.0
"""Cgroups made by hand, with workloads in them: any spelling of a path, and hundreds of lives in seconds.

Owns the directories it made. There is no runtime behind them: names are what a fake CRI server of the case says.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.vm.guest import tally

if TYPE_CHECKING:
    from tests.fakes.cri_server import FakeCri

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


@contextmanager
def pod(cri: FakeCri, name: str) -> Iterator[str]:
    """The cgroup of the container `main` of a pod that this runtime then knows; gives its path."""
    from tests.fakes.cri_server import FakePod

    uid, container = str(uuid.uuid4()), uuid.uuid4().hex * 2
    cri.pods.append(FakePod(uid, name, "handmade", uuid.uuid4().hex * 2, {container: "main"}))
    path = f"/kubepods/burstable/pod{uid}/{container}"
    with cgroup(path):
        yield path


def run(path: str, *args: str) -> tally.Tally:
    """Run the workload in this cgroup to its end; it has never been in another one when it makes its first call."""
    return tally.parse(subprocess.run(_command(path, args), check=True, capture_output=True, text=True).stdout)


@contextmanager
def running(path: str, *args: str) -> Iterator[Callable[[], tally.Tally]]:
    """The same beside the block, which gets what stops it and gives its tally.

    Last in the queue: a flood leaves little of an emulated processor for what else the block waits for.
    """
    with subprocess.Popen(["nice", "-n", "19", *_command(path, args)], stdout=subprocess.PIPE, text=True) as load:

        def stop() -> tally.Tally:
            load.terminate()
            return tally.parse(load.communicate()[0])

        try:
            yield stop
        finally:
            load.kill()


def _command(path: str, args: tuple[str, ...]) -> list[str]:
    return ["sh", "-c", ENTER, str(CGROUP_ROOT / path.lstrip("/")), str(tally.program(args)), *args]
