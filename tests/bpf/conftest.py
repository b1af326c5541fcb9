# SPDX-License-Identifier: Apache-2.0
"""A hooked workload on this kernel: pins of its own, cgroups of its own, both gone afterwards."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubenpu.kernel import attach, bpf
from kubenpu.kernel.bcc_loader import KERNEL_STRUCTS
from kubenpu.kernel.btf import Btf, Structs
from kubenpu.kernel.hooks import DRM_IOCTL, HOOKS, Hook
from kubenpu.kernel.libbpf import Messages, Object, run_raw_tracepoint
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.store import CounterStore
from kubenpu.kernel.support import KernelFacts, read_facts
from kubenpu.model.kinds import Kind
from kubenpu.model.mounts import find_mount
from kubenpu.model.sample import Cell, DeviceRule, KernelSample

BPFFS = Path("/sys/fs/bpf")
SUBMIT, WAIT, OTHER = 0x69, 0x6C, 0x0C
RENDER = 226 << 20 | 128


def command(nr: int, kind: str = "d") -> int:
    return ord(kind) << 8 | nr


def kinds() -> bytes:
    table = bytearray([Kind.OTHER]) * 256
    table[SUBMIT], table[WAIT] = Kind.SUBMIT, Kind.WAIT
    return bytes(table)


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("caller") / "caller"
    source = Path(__file__).with_name("caller.c")
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-pthread", "-o", binary, source], check=True)
    return binary


@pytest.fixture(scope="session")
def facts() -> KernelFacts:
    if not os.path.ismount(BPFFS):
        subprocess.run(["mount", "-t", "bpf", "bpf", BPFFS], check=True)
    return read_facts()


@dataclass
class Hooked:
    """The hooked workload, the way to load again, and the cgroups made so far."""

    caller: Path
    facts: KernelFacts
    pins: Pins
    cgroup_root: Path
    slots: int = 1024
    mechanisms: tuple[str, ...] = ("uprobe",)
    kernel: Path | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    stores: list[CounterStore] = field(default_factory=list)

    def load(self, *hooks: Hook) -> str:
        """Both hooks by default, on the same function; how the first one is attached."""
        target = attach.Target("knpu_call", self.caller)
        found = []
        for hook in hooks or HOOKS:
            path = attach.object_path(hook.name)
            since = attach.boot_ns()
            ladder = self.mechanisms
            request = attach.LoadRequest(hook, path, self.pins, self.slots, ladder, since, target, self.kernel)
            found.append(attach.load(request, self.facts, Messages()).mechanism)
        return found[0]

    def open(self) -> CounterStore:
        store = CounterStore(self.pins.directory)
        store.recover()
        self.stores.append(store)
        return store

    def ready(self, address: str = "0000:00:02.0") -> CounterStore:
        """Loaded, opened, and one device known under its render node."""
        self.load()
        store = self.open()
        slot = store.assign_slot(address)
        assert slot is not None
        assert store.write_rules([DeviceRule(226, 128, slot, kinds())]) == []
        return store

    def direct(self, hook: Hook) -> Callable[..., None]:
        """Calls the hook's counting code from this process, without a hook: (rdev, cmd, address, ret). After load()."""
        opened = self.stack.enter_context(Object(attach.object_path(hook.name), Messages()))
        request = attach.LoadRequest(hook, attach.object_path(hook.name), self.pins, self.slots, (), attach.boot_ns())
        attach._prepare(opened, request, self.facts, {"run_body"}, keep_bodies=False)
        opened.load()
        program = opened.program_fd("run_body")

        def call(rdev: int, cmd: int, address: int = 0, ret: int = 0) -> None:
            run_raw_tracepoint(program, (rdev, cmd, address, ret))

        return call

    def cgroup(self, name: str | bytes) -> Path:
        path = self.cgroup_root / os.fsdecode(name)
        made = []
        for directory in (path, *path.parents):
            if directory.exists():
                break
            made.append(directory)
        path.mkdir(parents=True)
        for directory in reversed(made):
            self.stack.callback(remove_cgroup, directory)
        return path

    def start(self, *arguments: object, cgroup: Path | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.caller, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.stack.callback(kill, process)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process

    def run(self, *arguments: object, cgroup: Path | None = None) -> int:
        """Runs the workload to its end; returns its own tally."""
        return finish(self.start(*arguments, cgroup=cgroup))


def finish(process: subprocess.Popen[str]) -> int:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return int(out)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def remove_cgroup(path: Path) -> None:
    if path.exists():
        path.rmdir()


def cells_by_cgroup(sample: KernelSample) -> dict[int, Cell]:
    """The one cell of each cgroup; fails when a cgroup has two on one device."""
    live = [c for c in sample.cells if c.cgroup_id]
    assert len({(c.cgroup_id, c.device) for c in live}) == len(live)
    return {c.cgroup_id: c for c in live}


def cgroup_id(path: Path) -> int:
    return path.stat().st_ino


def conserved(sample: KernelSample) -> None:
    """At rest: total = cells + lost, for calls, errors and waits of every device."""
    for slot, total in sample.after.items():
        mine = [c.counts for c in sample.cells if c.device == slot]
        assert sum(total.counts.calls) == sum(sum(c.calls) for c in mine) + sum(total.lost.values())


def this_kernel(own: Structs) -> Structs:
    """Our object's structs as this kernel has them, by its BTF."""
    library = bpf.library()
    library.btf__parse.restype = ctypes.c_void_p
    btf = Btf(library.btf__parse(b"/sys/kernel/btf/vmlinux", None))

    def place(number: int, wanted: str) -> int | None:
        for name, member in btf.members(number):
            at = int(member.offset & 0xFFFFFF) // 8
            inner = place(member.type, wanted) if not name else (0 if name == wanted else None)
            if inner is not None:
                return at + inner
        return None

    found: dict[str, tuple[int, dict[str, int]]] = {}
    for name, (_, members) in own.items():
        places = {member: place(btf.number(name), member) for member in members}
        found[name] = (btf.structs((name,))[name][0], {m: at for m, at in places.items() if at is not None})
    return found


@pytest.fixture
def layout_file(facts: KernelFacts, tmp_path: Path) -> Path:
    """What loader bcc finds out about this kernel."""
    with Object(attach.object_path(DRM_IOCTL.name), Messages()) as opened:
        file = tmp_path / "kernel.btf"
        file.write_bytes(opened.btf.with_structs(this_kernel(opened.btf.structs(KERNEL_STRUCTS))))
    return file


@pytest.fixture
def hooked(caller: Path, facts: KernelFacts) -> Iterator[Hooked]:
    mount = find_mount(Path("/proc/self/mounts").read_text(), "cgroup2")
    assert mount is not None
    root = mount / f"knpu-test-{os.getpid()}"
    pins = Pins(BPFFS / f"knpu-test-{os.getpid()}")
    fds = len(list(Path("/proc/self/fd").iterdir()))
    root.mkdir()
    tool = Hooked(caller, facts, pins, root)
    try:
        yield tool
    finally:
        tool.stack.close()
        for store in tool.stores:
            store.close()
        pins.remove()
        root.rmdir()
    assert not pins.directory.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == fds, "a file descriptor leaked"
