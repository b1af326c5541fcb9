# SPDX-License-Identifier: Apache-2.0
"""Where the BPF objects of this node are pinned, and what kubenpu-probe says of its hooks.

Pins live as long as the boot, or until kubenpu-probe unloads. The state file is JSON, written by the probe only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubenpu.kernel.hooks import HOOKS, Hook
from kubenpu.kernel.layout import ABI
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import HookStatus

STATE_NAME = "probe.json"
_NAMES = frozenset(hook.name for hook in HOOKS)  # a later version may have had others


@dataclass(frozen=True, slots=True)
class Pins:
    """Paths below one pin directory (default /sys/fs/bpf/kubenpu). bpffs reserves names with a dot."""

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / str(ABI)

    def map(self, name: str) -> Path:
        return self.root / name

    def are_gone(self) -> bool:
        """Whether there are none, which who may not look cannot say."""
        try:
            self.map("cells").stat()
        except OSError as e:
            return isinstance(e, FileNotFoundError)
        return False

    def link(self, hook: str, side: str) -> Path:
        return self.root / f"{hook}_{side}_link"

    def attached(self, hook: Hook) -> bool:
        """Whether all sides of the hook that every kernel has are pinned."""
        return all(self.link(hook.name, side).exists() for side in hook.required)

    def program(self, hook: str, side: str) -> Path:
        return self.root / f"{hook}_{side}_prog"

    def iterator(self, stem: str) -> Path:
        """A file that lists something when it is read."""
        return self.root / f"{stem}_iter"

    def body(self, hook: str, name: str) -> Path:
        return self.root / f"{hook}_{name}"

    def make(self) -> None:
        """Creates the directories. Raises KernelError when the place is no writable bpffs."""
        try:
            for directory in (self.directory, self.root):
                directory.mkdir(exist_ok=True)
        except OSError as e:
            raise KernelError(
                f"cannot create {self.root}: {e.strerror}", "Mount bpffs: mount -t bpf bpf /sys/fs/bpf"
            ) from e

    def remove(self) -> list[str]:
        """Unpins everything of ours: attached programs detach, totals are gone. Returns what was removed."""
        removed = []
        try:
            if self.root.is_dir():
                for path in sorted(self.root.iterdir(), key=lambda p: not p.name.endswith("_link")):
                    path.unlink(missing_ok=True)
                    removed.append(path.name)
                self.root.rmdir()
            if self.directory.is_dir() and not any(self.directory.iterdir()):
                self.directory.rmdir()
        except OSError as e:
            raise KernelError(f"cannot remove all pins of {self.root}: {e.strerror}", "Run it as root, again") from e
        return removed


def write_state(run_directory: Path, hooks: tuple[HookStatus, ...], drm_module: int | None) -> None:
    """Replaces the state file in one step; who writes holds the lock. `drm_module`: inode of /sys/module/drm, tells a
    reload apart."""
    document = {"hooks": [dataclasses.asdict(h) for h in hooks], "drm_module": drm_module}
    temporary = run_directory / f".{STATE_NAME}.new"
    try:
        run_directory.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(run_directory / STATE_NAME)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _refused("write", run_directory / STATE_NAME, e) from e


def read_state(run_directory: Path) -> tuple[tuple[HookStatus, ...], int | None]:
    """Hooks and drm_module of the last kubenpu-probe run; ((), None) when it has not run since boot."""
    try:
        document = json.loads((run_directory / STATE_NAME).read_text())
        found = tuple(_checked(HookStatus(**h)) for h in document["hooks"])
        return tuple(each for each in found if each.hook in _NAMES), document["drm_module"]
    except FileNotFoundError:
        return (), None
    except OSError as e:
        raise _refused("read", run_directory / STATE_NAME, e) from e
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise KernelError(f"{run_directory / STATE_NAME} is damaged ({e})", "Run kubenpu-probe load again") from e


def _checked(status: HookStatus) -> HookStatus:
    texts = (status.hook, status.mechanism, status.reason, status.loader)
    if not all(isinstance(each, str) for each in texts) or type(status.needed) is not bool:
        raise TypeError(f"{status.hook!r} has values of other types")
    if type(status.since_ns) is not int or not 0 <= status.since_ns < 1 << 63:
        raise ValueError(f"{status.hook!r} has no time")
    return status


def claim(directory: Path) -> int:
    """Takes the pins for one reader that folds and frees: the fd holds the claim until it is closed.

    Raises KernelError while another process has it: two that fold the same cells would lose counts.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise KernelError(f"cannot open {directory}: {e.strerror}", "Start kubenpu-probe (kubenpu-probe load)") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(fd)
        raise KernelError(
            f"another kubenpud uses the counters below {directory}",
            "Stop it, or give this one a pin directory of its own",
        ) from e
    return fd


@contextmanager
def locked(run_directory: Path, name: str) -> Iterator[None]:
    """Serialises kubenpu-probe and kubenpud where both write the same maps."""
    path = run_directory / f"{name}.lock"
    try:
        run_directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    except OSError as e:
        raise _refused("lock", path, e) from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _refused(doing: str, path: Path, error: OSError) -> KernelError:
    return KernelError(f"cannot {doing} {path}: {error.strerror}", "Check run_directory and who may write there")
