# SPDX-License-Identifier: Apache-2.0
"""What the loader bcc does before libbpf can: tells where this kernel has the members of its structs, without its BTF.

bcc compiles one function for each struct and member against the headers of the running kernel; each returns a
constant, which is read off its bytecode. Nothing of bcc gets into the kernel: with these numbers the BTF of our own
object becomes a description of this kernel, and libbpf relocates the programs that every other kernel has, too. bcc
cannot compile those itself: it drops the callbacks of bpf_loop() and calls between functions.

bcc with LLVM takes 90 MiB and seconds, so it is imported here only, and what came out is kept in the run directory for
this boot. Refuses kernels whose structs were laid out at random.
"""

from __future__ import annotations

import ctypes
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kubenpu.kernel.btf import Structs
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.model.errors import KernelError

# Those of bpf/core_types.h, and the headers that the kernel has them in.
KERNEL_STRUCTS = ("cgroup", "css_set", "file", "inode", "kernfs_node", "task_struct")
LAYOUTS = "kernel-*.btf"
_INCLUDES = ("linux/cgroup-defs.h", "linux/fs.h", "linux/kernfs.h", "linux/sched.h")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RETURN_CONSTANT = struct.Struct("=BBHiBBHi")  # mov r0, constant; exit
_MOVES, _EXIT = (0xB4, 0xB7), 0x95


def write_layout(object_path: Path, run_directory: Path, messages: Messages) -> Path:
    """The file with the layout of this kernel's structs, made now if this boot has none yet. Raises KernelError."""
    with Object(object_path, messages) as opened:
        own = opened.btf.structs(KERNEL_STRUCTS)
        source = make_source(own)
        path = run_directory / LAYOUTS.replace("*", f"{zlib.crc32((_BOOT_ID.read_text() + source).encode()):08x}")
        if not path.exists():
            _keep(path, opened.btf.with_structs(parse_layout(own, _compile(source, _functions(own)))))
    return path


def make_source(own: Structs) -> str:
    """C that answers for size and offsets of these structs. Pure."""
    lines = [f"#include <{name}>" for name in _INCLUDES]
    lines += ["#ifdef CONFIG_RANDSTRUCT", "#error this kernel's structs are laid out at random", "#endif"]
    lines += [f"u64 {function}(void *ctx) {{ return {value}; }}" for function, value in _functions(own).items()]
    return "\n".join(lines) + "\n"


def _functions(own: Structs) -> dict[str, str]:
    """Function -> what it returns."""
    found = {}
    for name, (_, members) in own.items():
        found[f"size_of_{name}"] = f"sizeof(struct {name})"
        found |= {f"place_of_{name}__{m}": f"__builtin_offsetof(struct {name}, {m})" for m in members}
    return found


def parse_layout(own: Structs, code: Mapping[str, bytes]) -> Structs:
    """The same structs as this kernel has them, from the bytecode of the functions. Pure."""
    return {
        name: (
            parse_constant(code[f"size_of_{name}"]),
            {m: parse_constant(code[f"place_of_{name}__{m}"]) for m in members},
        )
        for name, (_, members) in own.items()
    }


def parse_constant(code: bytes) -> int:
    """What a function returns that does nothing else. Raises KernelError for any other function. Pure."""
    if len(code) == _RETURN_CONSTANT.size:
        move, register, _, value, leave, *_ = _RETURN_CONSTANT.unpack(code)
        if move in _MOVES and register == 0 and leave == _EXIT:
            return int(value)
    raise KernelError("bcc made code that was not expected", "Report this with the version of bcc")


def _compile(source: str, functions: Iterable[str]) -> dict[str, bytes]:
    """Bytecode by function. What bcc's compiler has to say goes to stderr."""
    release = os.uname().release
    try:
        from bcc.libbcc import lib  # noqa: PLC0415 - see above
    except (ImportError, OSError) as e:
        raise KernelError(f"bcc cannot be used ({e})", "Install python3-bpfcc (python3-bcc on Fedora)") from e
    module = lib.bpf_module_create_c_from_string(source.encode(), 0, None, 0, False, None)
    if not module:
        raise KernelError(
            f"bcc cannot compile with the headers of kernel {release}, its messages are above",
            "Install the headers of exactly this kernel, completely",
        )
    try:
        return {name: _code(lib, module, name.encode()) for name in functions}
    finally:
        lib.bpf_module_destroy(module)


def _code(lib: Any, module: int, function: bytes) -> bytes:
    return ctypes.string_at(lib.bpf_function_start(module, function), lib.bpf_function_size(module, function))


def _keep(path: Path, data: bytes) -> None:
    """In one step, in place of those of other boots and versions."""
    temporary = path.with_suffix(".new")
    try:
        temporary.write_bytes(data)
        for old in path.parent.glob(LAYOUTS):
            old.unlink()
        temporary.replace(path)
    except OSError as e:
        raise KernelError(f"cannot write {path}: {e.strerror}", "Check run_directory and who may write there") from e
