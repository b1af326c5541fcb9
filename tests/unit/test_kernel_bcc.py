# SPDX-License-Identifier: Apache-2.0
"""The loader bcc over a bcc that is not there: what is asked of it, what is made of its answers, what is kept."""

from __future__ import annotations

import ctypes
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.kernel import attach, bcc_loader
from kubenpu.kernel.bcc_loader import KERNEL_STRUCTS, make_source, parse_constant, parse_layout, write_layout
from kubenpu.kernel.btf import Structs
from kubenpu.kernel.hooks import HOOKS, Hook
from kubenpu.kernel.libbpf import Messages
from kubenpu.model.errors import KernelError
from tests.fakes.fake_libbpf import FakeKernel, FakeProbe
from tests.unit.test_kernel_support import GOOD

OWN: Structs = {"cgroup": (24, {"level": 0, "kn": 8}), "css_set": (8, {"dfl_cgrp": 0})}
HERE: Structs = {"cgroup": (1800, {"level": 208, "kn": 248}), "css_set": (592, {"dfl_cgrp": 128})}


def returning(value: int) -> bytes:
    """Bytecode of `return value`: what clang makes of it for BPF."""
    return bytes([0xB7, 0, 0, 0]) + value.to_bytes(4, "little", signed=True) + bytes([0x95]) + bytes(7)


@dataclass
class FakeBcc:
    """libbcc as bcc.libbcc hands it out. `values`: what the functions return; none: it does not compile."""

    values: dict[str, int] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    destroyed: int = 0

    def __post_init__(self) -> None:
        self._buffers: dict[bytes, ctypes.Array[ctypes.c_char]] = {}

    def bpf_module_create_c_from_string(self, text: bytes, *_: object) -> int:
        self.sources.append(text.decode())
        for name in re.findall(r"^u64 (\w+)\(void \*ctx\)", text.decode(), re.M):
            if name in self.values:
                code = returning(self.values[name])
                self._buffers[name.encode()] = ctypes.create_string_buffer(code, len(code))
        return 7 if self.values else 0

    def bpf_function_start(self, _module: int, name: bytes) -> int:
        return ctypes.addressof(self._buffers[name])

    def bpf_function_size(self, _module: int, name: bytes) -> int:
        return len(self._buffers[name])

    def bpf_module_destroy(self, _module: int) -> None:
        self.destroyed += 1


@dataclass
class FakeObject:
    """Our object: what it takes a kernel's structs to be, and a copy with others."""

    path: Path
    messages: object

    @property
    def btf(self) -> FakeObject:
        return self

    def structs(self, names: tuple[str, ...]) -> Structs:
        assert names == KERNEL_STRUCTS
        return OWN

    def with_structs(self, structs: Structs) -> bytes:
        return repr(structs).encode()

    def __enter__(self) -> FakeObject:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


VALUES = {
    **{f"size_of_{name}": size for name, (size, _) in HERE.items()},
    **{f"place_of_{name}__{m}": at for name, (_, members) in HERE.items() for m, at in members.items()},
}


@pytest.fixture
def bcc(monkeypatch: pytest.MonkeyPatch) -> FakeBcc:
    fake, module = FakeBcc(dict(VALUES)), types.ModuleType("bcc.libbcc")
    module.__dict__["lib"] = fake
    monkeypatch.setitem(sys.modules, "bcc", types.ModuleType("bcc"))
    monkeypatch.setitem(sys.modules, "bcc.libbcc", module)
    monkeypatch.setattr(bcc_loader, "Object", FakeObject)
    return fake


@pytest.fixture
def write(tmp_path: Path) -> Callable[[], Path]:
    return lambda: write_layout(Path("drm_ioctl.bpf.o"), tmp_path, cast(Messages, None))


def test_every_size_and_member_is_asked_for_and_found(bcc: FakeBcc, write: Callable[[], Path]) -> None:
    assert write().read_text() == repr(HERE)
    assert bcc.destroyed == 1


def test_bcc_runs_once_for_a_boot(
    bcc: FakeBcc, write: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next boot may have another kernel; nothing of the last one is left then."""
    boot = tmp_path / "boot_id"
    boot.write_text("one")
    monkeypatch.setattr(bcc_loader, "_BOOT_ID", boot)
    first = write()
    assert (write(), len(bcc.sources)) == (first, 1)
    boot.write_text("two")
    second = write()
    assert (second != first, len(bcc.sources)) == (True, 2)
    assert list(tmp_path.glob("kernel-*")) == [second]


def test_no_kernel_with_structs_at_random() -> None:
    source = make_source(OWN)
    assert "#ifdef CONFIG_RANDSTRUCT\n#error" in source
    assert source.count("__builtin_offsetof") == 3


def test_headers_that_do_not_compile(bcc: FakeBcc, write: Callable[[], Path], tmp_path: Path) -> None:
    bcc.values.clear()
    with pytest.raises(KernelError, match="cannot compile with the headers") as raised:
        write()
    assert "exactly this kernel" in raised.value.remedy
    assert not list(tmp_path.iterdir())


def test_no_bcc(bcc: FakeBcc, write: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcc.libbcc", None)
    with pytest.raises(KernelError, match="bcc cannot be used") as raised:
        write()
    assert "python3-bpfcc" in raised.value.remedy


def test_a_run_directory_that_cannot_be_written(bcc: FakeBcc, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot write"):
        write_layout(Path("drm_ioctl.bpf.o"), tmp_path / "absent", cast(Messages, None))


@given(st.integers(0, 2**31 - 1), st.sampled_from([0xB4, 0xB7]))
def test_constants(value: int, move: int) -> None:
    assert parse_constant(bytes([move]) + returning(value)[1:]) == value


@pytest.mark.parametrize(
    "code",
    [
        b"",
        returning(5)[:8],
        returning(5) + bytes(8),
        bytes([0xB7, 1]) + returning(5)[2:],  # another register
        bytes([0x85]) + returning(5)[1:],  # a call
        returning(5)[:8] + bytes([0x05]) + bytes(7),  # a jump
    ],
)
def test_a_function_that_does_anything_else_is_refused(code: bytes) -> None:
    with pytest.raises(KernelError, match="not expected"):
        parse_constant(code)


def test_layout_has_what_our_object_has() -> None:
    code = {name: returning(value) for name, value in VALUES.items()} | {"size_of_more": returning(1)}
    assert parse_layout(OWN, code) == HERE


# ---- what the programs then use ----


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_loader_bcc_uses_nothing_that_needs_types_of_a_kernel(kernel: FakeKernel, probe: FakeProbe, hook: Hook) -> None:
    """No local storage, kprobes only."""
    status = replace(probe, hook=hook, kernel=Path("layout.btf"), facts=replace(GOOD, btf=False)).load()
    assert (status.loader, status.mechanism) == ("bcc", "kprobe.multi")
    assert "fentry: it needs the kernel's BTF, and there is none" in status.reason
    assert {link.mechanism for link in kernel.attached(hook.name)} == {"kprobe.multi"}
    assert {"cgroup_cells_by_id", "in_flight_by_thread"} <= probe.names()
    assert "cgroup_cells" not in probe.names()
    assert (kernel.constants[-1]["knpu_kernel_btf"], kernel.constants[-1]["knpu_cgroup_storage"]) == (0, 0)


def test_loader_core_has_no_use_for_the_hash_of_bcc(kernel: FakeKernel, probe: FakeProbe) -> None:
    assert probe.load().loader == "core"
    assert "in_flight_by_thread" not in probe.names()
    assert kernel.constants[-1]["knpu_kernel_btf"] == 1


def test_the_loader_may_change_behind_an_attached_hook(kernel: FakeKernel, probe: FakeProbe) -> None:
    probe.load("kprobe")
    status = replace(probe, kernel=Path("layout.btf")).load()
    assert (status.loader, status.mechanism) == ("bcc", "kprobe")
    assert kernel.mechanism() == "kprobe"


@pytest.mark.parametrize(("hook", "mechanism"), [(HOOKS[0], "fentry"), (HOOKS[1], "lsm")])
def test_what_only_core_can_attach_bcc_does_not_replace(
    kernel: FakeKernel, probe: FakeProbe, hook: Hook, mechanism: str
) -> None:
    attached = replace(probe, hook=hook)
    assert attached.load().mechanism == mechanism
    links = kernel.attached(hook.name)
    with pytest.raises(KernelError, match=f"attached by {mechanism}, whose program loader bcc cannot make"):
        replace(attached, kernel=Path("layout.btf")).load()
    assert kernel.attached(hook.name) == links


@pytest.mark.parametrize(("name", "found"), [("drm_ioctl", True), ("ioctl", False), ("knpu_call", False)])
def test_symbols_of_the_kernel_and_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: bool
) -> None:
    symbols = tmp_path / "kallsyms"
    symbols.write_text("0000000000000000 T do_vfs_ioctl\n0000000000000000 t drm_ioctl\t[drm]\n")
    monkeypatch.setattr(attach, "_SYMBOLS", symbols)
    assert attach.has_symbol(name) is found
