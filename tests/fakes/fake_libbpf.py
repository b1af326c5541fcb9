# SPDX-License-Identifier: Apache-2.0
"""libbpf and the kernel behind it, as kubenpu.kernel.attach sees them, for tests without either.

Pins are files below whatever directory the test uses; a link lives while it is open or pinned. Every call is a step
that may be told to fail or to be the last one before SIGKILL. At every step one mechanism at most may be attached.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from kubenpu.kernel import attach, bpf, layout
from kubenpu.kernel.attach import LoadRequest, Target, load
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, HOOKS, SHARED_MAPS, Hook
from kubenpu.kernel.libbpf import Messages
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.support import KernelFacts
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import HookStatus

COMMON = (*SHARED_MAPS, "cgroup_cells", "cgroup_cells_by_id", "in_flight_by_thread")
BODIES = {hook.name: tuple(f"{side}_body" for side in hook.sides) for hook in HOOKS}
SHAPE = bpf.MapShape(2, 4, 8, 192, 7)
ATTACHING = {
    "attach_kprobe_multi": "kprobe.multi",
    "attach_kprobe": "kprobe",
    "attach_uprobe": "uprobe",
}


class SigKill(BaseException):
    """The process ends here: nobody handles it, open fds are closed, pins stay."""


@dataclass
class FakeLink:
    """One attached program."""

    kernel: FakeKernel
    hook: str
    mechanism: str
    program: str
    at_return: bool
    path: Path | None = None
    open: bool = True

    def pin(self, path: Path) -> None:
        self.kernel.step(f"pin {path.name}")
        path.write_text(str(id(self)))
        self.path = path

    def close(self) -> None:
        self.open = False

    @property
    def attached(self) -> bool:
        return self.open or (self.path is not None and self.path.exists() and self.path.read_text() == str(id(self)))


ATTACHED_NS = 9
"""When hooks are attached."""


@dataclass
class FakeKernel:
    """`refuse`: step -> errno, for good. `fail_at`, `kill_at`: number of the one step that fails or is the last."""

    refuse: dict[str, int] = field(default_factory=dict)
    fail_at: int = 0
    kill_at: int = 0
    count: int = 0
    steps: list[str] = field(default_factory=list)
    links: list[FakeLink] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    constants: list[Mapping[str, int]] = field(default_factory=list)
    shape: bpf.MapShape = SHAPE
    structs_found: dict[str, Any] | None = None
    storage: bool = True
    sides: dict[str, int] = field(default_factory=lambda: {hook.name: len(hook.sides) for hook in HOOKS})
    fds: int = field(default_factory=lambda: os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))

    def step(self, name: str) -> None:
        self.count += 1
        self.steps.append(name)
        self.check()
        code = self.refuse.get(name, errno.EIO if self.count == self.fail_at else 0)
        if code:
            raise KernelError(f"cannot {name}: number {code}\nlibbpf: much more") from OSError(code, "")
        if self.count == self.kill_at:
            raise SigKill

    def attached(self, hook: str = "drm_ioctl") -> list[FakeLink]:
        return [link for link in self.links if link.attached and link.hook == hook]

    def check(self) -> None:
        """What must hold at every moment, hook by hook: one mechanism, each side once."""
        for hook in HOOKS:
            attached = self.attached(hook.name)
            assert len({link.mechanism for link in attached}) <= 1
            assert len({link.program for link in attached}) == len(attached)

    def mechanism(self, hook: str = "drm_ioctl") -> str:
        """How a hook is attached now: with all sides that there are, or not at all."""
        attached = self.attached(hook)
        assert len(attached) in (0, self.sides[hook])
        return attached[0].mechanism if attached else "off"


class FakeMap:
    """An open map; what is written into a body array is noted."""

    kernel: FakeKernel

    def __init__(self, fd: int, name: str = "") -> None:
        self.fd, self.name, self.shape = fd, name, self.kernel.shape

    @classmethod
    def pinned(cls, path: Path) -> FakeMap:
        return cls(os.dup(cls.kernel.fds), path.name)

    def __enter__(self) -> FakeMap:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.fd)

    def update(self, _key: bytes, _value: bytes) -> None:
        self.kernel.step("update a map entry")


@dataclass(frozen=True)
class FakeBtf:
    """The BTF of the object, which fits unless the kernel says otherwise."""

    kernel: FakeKernel

    def structs(self, names: Mapping[str, type[ctypes.Structure]]) -> Mapping[str, Any]:
        fitting = {name: (ctypes.sizeof(struct), layout.members_of(struct)) for name, struct in names.items()}
        return self.kernel.structs_found if self.kernel.structs_found is not None else fitting


class FakeObject:
    """The opened object file."""

    kernel: FakeKernel

    def __init__(self, path: Path, _messages: Messages, _kernel: Path | None = None) -> None:
        self.kernel.step(f"open {path.name}")
        self.btf = FakeBtf(self.kernel)
        self._hook = path.name.removesuffix(".bpf.o")
        self._left_out: set[str] = set()
        self.programs: set[str] = set()

    def __enter__(self) -> FakeObject:
        return self

    def __exit__(self, *_error: object) -> None:
        """The programs stay where they are attached."""

    def maps(self) -> list[str]:
        own = FILE_IOCTL.maps if self._hook == FILE_IOCTL.name else ()
        return [name for name in (*COMMON, *own, *BODIES[self._hook]) if name not in self._left_out]

    def keep_only(self, programs: set[str]) -> None:
        self.programs = programs

    def leave_out(self, name: str) -> None:
        self._left_out.add(name)

    def shape(self, _name: str) -> tuple[int, int, int]:
        return 2, 4, 8

    def set_capacity(self, name: str, entries: int) -> None:
        self.kernel.steps.append(f"{name} has {entries}")

    def set_constants(self, values: Mapping[str, int]) -> None:
        self.kernel.constants.append(values)

    def reuse(self, name: str, _fd: int) -> None:
        self.kernel.step(f"reuse {name}")

    def expect_kprobe_multi(self, name: str) -> None:
        assert name in self.programs

    def load(self) -> None:
        self.kernel.step("load " + next((p.partition("_")[0] for p in sorted(self.programs - {"run_body"})), "nothing"))

    def map_fd(self, name: str) -> int:
        assert name in self.maps()
        return self.kernel.fds

    def program_fd(self, name: str) -> int:
        assert name in self.programs, f"{name} was not loaded"
        return 7

    def __getattr__(self, how: str) -> Callable[..., FakeLink]:
        def attach_program(name: str, *arguments: object) -> FakeLink:
            assert name in self.programs
            mechanism = ATTACHING.get(how) or ("lsm" if name.startswith("lsm") else "fentry")
            self.kernel.step(f"{mechanism} {name}")
            at_return = name.startswith(("fexit", "kretprobe", "uretprobe"))
            if arguments:
                assert arguments[-1] is at_return
                assert arguments[-2] in ("drm_ioctl", "security_file_ioctl", "security_file_ioctl_compat", "knpu_call")
            link = FakeLink(self.kernel, self._hook, mechanism, name, at_return)
            self.kernel.links.append(link)
            return link

        return attach_program


@dataclass(frozen=True)
class FakeProbe:
    """A kubenpu-probe with its pins below a directory."""

    pins: Pins
    facts: KernelFacts
    hook: Hook = DRM_IOCTL
    kernel: Path | None = None

    def load(self, *mechanisms: str, target: Target | None = None, since_ns: int = 5) -> HookStatus:
        path = Path(f"{self.hook.name}.bpf.o")
        ladder = mechanisms or self.hook.ladder
        request = LoadRequest(self.hook, path, self.pins, 64, ladder, since_ns, target, self.kernel)
        return load(request, self.facts, cast(Messages, None))

    def names(self) -> set[str]:
        return {path.name for path in self.pins.root.iterdir()}


def put_in(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between kubenpu.kernel.attach and the kernel of this machine."""

    def pin(_fd: int, path: Path) -> None:
        fake.step(f"pin {path.name}")
        path.touch()

    monkeypatch.setattr(attach, "Object", type("Object", (FakeObject,), {"kernel": fake}))
    monkeypatch.setattr(bpf, "Map", type("Map", (FakeMap,), {"kernel": fake}))
    monkeypatch.setattr(bpf, "pin", pin)
    monkeypatch.setattr(attach, "has_cgroup_storage", lambda: fake.storage)
    monkeypatch.setattr(attach, "boot_ns", lambda: ATTACHED_NS)
    monkeypatch.setattr(attach, "self_test", lambda _opened, _hook, _cgroup2: fake.step("self-test"))
    for has in ("has_function", "has_symbol"):
        monkeypatch.setattr(attach, has, lambda _name: fake.sides["file_ioctl"] == 2)
