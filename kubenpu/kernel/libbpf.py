# SPDX-License-Identifier: Apache-2.0
"""BPF objects through libbpf: open, choose, load, attach, pin. Used by kubenpu-probe only, needs its privileges.

An Object owns everything libbpf made for it and gives it back on close; what was pinned stays. libbpf's own messages
are collected and become the explanation of an error; with `debug` they and the verifier's log go to stderr at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kubenpu.kernel import bpf
from kubenpu.kernel.btf import Btf
from kubenpu.model.errors import KernelError

_POINTERS = [
    "bpf_object__open_file",
    "bpf_object__find_map_by_name",
    "bpf_object__find_program_by_name",
    "bpf_object__next_map",
    "bpf_object__next_program",
    "bpf_map__name",
    "bpf_program__name",
    "bpf_map__initial_value",
    "bpf_program__attach",
    "bpf_program__attach_kprobe",
    "bpf_program__attach_kprobe_multi_opts",
    "bpf_program__attach_uprobe_opts",
    "bpf_object__btf",
]
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_KEPT_LINES = 400
_WHOLE_LOG = 1 << 26  # of the verifier, for --debug


class _OpenOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("object_name", ctypes.c_char_p),
        ("relaxed_maps", ctypes.c_bool),
        ("pin_root_path", ctypes.c_char_p),
        ("removed", ctypes.c_uint32),
        ("kconfig", ctypes.c_char_p),
        ("btf_custom_path", ctypes.c_char_p),
    )


class _KprobeMultiOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("syms", ctypes.POINTER(ctypes.c_char_p)),
        ("addrs", ctypes.c_void_p),
        ("cookies", ctypes.c_void_p),
        ("cnt", ctypes.c_size_t),
        ("retprobe", ctypes.c_bool),
    )


class _UprobeOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("ref_ctr_offset", ctypes.c_size_t),
        ("bpf_cookie", ctypes.c_uint64),
        ("retprobe", ctypes.c_bool),
        ("func_name", ctypes.c_char_p),
    )


class _TestRunOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


class Messages:
    """libbpf's messages, newest last, at most a few hundred. One per process, as libbpf has one print function."""

    def __init__(self, debug: bool = False) -> None:
        self.debug = debug
        self.lines: list[str] = []
        self._format = ctypes.CDLL(None).vsnprintf
        self._buffer = ctypes.create_string_buffer(_WHOLE_LOG if debug else 1 << 16)
        self._callback = _PRINT(self._take)  # kept: libbpf holds no reference
        bpf.library().libbpf_set_print(self._callback)

    def _take(self, level: int, form: bytes, arguments: int) -> int:
        self._format(self._buffer, ctypes.c_size_t(len(self._buffer)), form, ctypes.c_void_p(arguments))
        text = self._buffer.value.decode(errors="replace").rstrip("\n")
        if self.debug:
            print(text, file=sys.stderr)
        if level <= 1:
            self.lines = [*self.lines[-_KEPT_LINES:], text]
        return 0

    def last(self, count: int = 12) -> str:
        """The last messages as one text, for an error."""
        return "\n".join("\n".join(self.lines).splitlines()[-count:])


class Link:
    """An attached program. `close()` detaches unless it was pinned."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def pin(self, path: Path) -> None:
        result = bpf.library().bpf_link__pin(ctypes.c_void_p(self._pointer), os.fsencode(path))
        if result < 0:
            raise KernelError(f"cannot pin {path}: {os.strerror(-result)}")

    def close(self) -> None:
        if self._pointer:
            bpf.library().bpf_link__destroy(ctypes.c_void_p(self._pointer))
            self._pointer = 0


class Object:
    """One compiled object file, opened. Choose maps and programs, then `load()`. `kernel`: a file with the BTF of the
    kernel to load for, instead of the running kernel's own."""

    def __init__(self, path: Path, messages: Messages, kernel: Path | None = None) -> None:
        self._lib: Any = bpf.library()
        for name in _POINTERS:
            getattr(self._lib, name).restype = ctypes.c_void_p
        for name in ("bpf_map__name", "bpf_program__name"):
            getattr(self._lib, name).restype = ctypes.c_char_p
        self._messages = messages
        self._left_out: set[str] = set()
        self._mend = "Install the package again or run make bpf" + (f", and remove {kernel}" if kernel else "")
        self._pointer: int | None = None
        if not path.is_file():
            raise KernelError(f"the BPF object {path} does not exist", "Install the package completely or run make bpf")
        opts = _OpenOpts(sz=ctypes.sizeof(_OpenOpts), btf_custom_path=os.fsencode(kernel) if kernel else None)
        opened = self._lib.bpf_object__open_file(os.fsencode(path), ctypes.byref(opts))
        self._pointer = self._made(opened, f"open {path}")

    def __enter__(self) -> Object:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._pointer:
            self._lib.bpf_object__close(ctypes.c_void_p(self._pointer))
            self._pointer = None

    def _made(self, pointer: int | None, doing: str) -> int:
        """libbpf 1.x returns NULL and sets errno."""
        if pointer:
            return pointer
        raise self.error(ctypes.get_errno(), doing)

    def error(self, code: int, doing: str) -> KernelError:
        """A KernelError with libbpf's own words; its `__cause__` is the OSError with the errno. What to do is said of
        files that are damaged."""
        words = ctypes.create_string_buffer(128)
        own = code >= _DAMAGED[0] and self._lib.libbpf_strerror(code, words, ctypes.c_size_t(len(words))) == 0
        text = words.value.decode(errors="replace") if own else os.strerror(code) if code < 512 else f"error {code}"
        said = self._messages.last()
        remedy = self._mend if code in _DAMAGED else ""
        error = KernelError(f"cannot {doing}: {text}" + (f"\n{said}" if said else ""), remedy)
        error.__cause__ = OSError(code, text)
        return error

    def _map(self, name: str) -> ctypes.c_void_p:
        found = self._lib.bpf_object__find_map_by_name(ctypes.c_void_p(self._pointer), name.encode())
        return ctypes.c_void_p(self._made(found, f"find the map {name}"))

    def _program(self, name: str) -> ctypes.c_void_p:
        found = self._lib.bpf_object__find_program_by_name(ctypes.c_void_p(self._pointer), name.encode())
        return ctypes.c_void_p(self._made(found, f"find the program {name}"))

    def _names(self, following: Callable[..., int | None], name_of: Callable[..., bytes]) -> list[str]:
        names, item = [], following(ctypes.c_void_p(self._pointer), None)
        while item:
            names.append(name_of(ctypes.c_void_p(item)).decode())
            item = following(ctypes.c_void_p(self._pointer), ctypes.c_void_p(item))
        return names

    def maps(self) -> list[str]:
        """Names of the maps that were declared (not libbpf's own for .rodata)."""
        names = self._names(self._lib.bpf_object__next_map, self._lib.bpf_map__name)
        return [n for n in names if "." not in n and n not in self._left_out]

    @property
    def btf(self) -> Btf:
        """The object's own BTF, while it is open."""
        return Btf(self._made(self._lib.bpf_object__btf(ctypes.c_void_p(self._pointer)), "read BTF"))

    def keep_only(self, programs: set[str]) -> None:
        """Loads these programs and no others."""
        for name in self._names(self._lib.bpf_object__next_program, self._lib.bpf_program__name):
            program = self._program(name)
            self._lib.bpf_program__set_autoload(program, ctypes.c_bool(name in programs))
            if self._messages.debug:
                self._lib.bpf_program__set_log_level(program, 2)

    def leave_out(self, name: str) -> None:
        """Does not create this map; programs must not reach code that uses it. It is no longer among maps()."""
        self._left_out.add(name)
        self._lib.bpf_map__set_autocreate(self._map(name), ctypes.c_bool(False))

    def set_capacity(self, name: str, entries: int) -> None:
        self._lib.bpf_map__set_max_entries(self._map(name), ctypes.c_uint32(entries))

    def set_constants(self, values: Mapping[str, int]) -> None:
        """Sets `const volatile __u32` knobs. They are looked up in the BTF of .rodata by name."""
        size = ctypes.c_size_t()
        address = self._lib.bpf_map__initial_value(self._map(".rodata"), ctypes.byref(size))
        for name, offset in self.btf.variables(".rodata", values).items():
            ctypes.c_uint32.from_address(self._made(address, "find .rodata") + offset).value = values[name]

    def shape(self, name: str) -> tuple[int, int, int]:
        """Type number, key size and value size of a map as the object declares it."""
        ask, which = self._lib, self._map(name)
        return int(ask.bpf_map__type(which)), int(ask.bpf_map__key_size(which)), int(ask.bpf_map__value_size(which))

    def reuse(self, name: str, fd: int) -> None:
        """Uses an existing map in place of a new one. Its shape must fit."""
        result = self._lib.bpf_map__reuse_fd(self._map(name), fd)
        if result < 0:
            raise self.error(-result, f"reuse the pinned map {name}")

    def load(self) -> None:
        result = self._lib.bpf_object__load(ctypes.c_void_p(self._pointer))
        if result < 0:
            raise self.error(-result, "load the BPF programs")

    def map_fd(self, name: str) -> int:
        return int(self._lib.bpf_map__fd(self._map(name)))

    def program_fd(self, name: str) -> int:
        return int(self._lib.bpf_program__fd(self._program(name)))

    def attach(self, name: str) -> Link:
        """fentry and fexit: where the section name says."""
        return Link(self._made(self._lib.bpf_program__attach(self._program(name)), f"attach {name}"))

    def attach_kprobe(self, name: str, function: str, at_return: bool) -> Link:
        pointer = self._lib.bpf_program__attach_kprobe(self._program(name), ctypes.c_bool(at_return), function.encode())
        return Link(self._made(pointer, f"attach {name}"))

    def expect_kprobe_multi(self, name: str) -> None:
        """Before load: this kprobe program will be attached with attach_kprobe_multi()."""
        trace_kprobe_multi = 42
        self._lib.bpf_program__set_expected_attach_type(self._program(name), trace_kprobe_multi)

    def attach_kprobe_multi(self, name: str, function: str, at_return: bool) -> Link:
        symbols = (ctypes.c_char_p * 1)(function.encode())
        opts = _KprobeMultiOpts(ctypes.sizeof(_KprobeMultiOpts), symbols, None, None, 1, at_return)
        pointer = self._lib.bpf_program__attach_kprobe_multi_opts(self._program(name), None, ctypes.byref(opts))
        return Link(self._made(pointer, f"attach {name}"))

    def attach_uprobe(self, name: str, binary: Path, function: str, at_return: bool) -> Link:
        opts = _UprobeOpts(ctypes.sizeof(_UprobeOpts), 0, 0, at_return, function.encode())
        pointer = self._lib.bpf_program__attach_uprobe_opts(
            self._program(name), -1, os.fsencode(binary), ctypes.c_size_t(0), ctypes.byref(opts)
        )
        return Link(self._made(pointer, f"attach {name} to {function} of {binary}"))


def run_raw_tracepoint(program_fd: int, arguments: tuple[int, ...]) -> None:
    """Runs a raw_tp program once in this process (BPF_PROG_TEST_RUN) with 64-bit arguments."""
    words = (ctypes.c_uint64 * len(arguments))(*(a & (1 << 64) - 1 for a in arguments))
    opts = _TestRunOpts(sz=ctypes.sizeof(_TestRunOpts))
    opts.ctx_in, opts.ctx_size_in = ctypes.addressof(words), ctypes.sizeof(words)
    result = bpf.library().bpf_prog_test_run_opts(program_fd, ctypes.byref(opts))
    if result < 0:
        code = -result if result != -1 else ctypes.get_errno()
        raise KernelError(f"cannot run a program for a test: {os.strerror(code)}") from OSError(code, "")


def errno_of(error: KernelError) -> int:
    """The errno behind an error of this module, 0 when there is none."""
    return (error.__cause__.errno or 0) if isinstance(error.__cause__, OSError) else 0


_DAMAGED = (4000, 4001)  # LIBBPF_ERRNO__LIBELF and __FORMAT, the first of libbpf's own
ENOTSUPP = 524  # the kernel's own; errno.ENOTSUP is another number
NO_BTF = errno.ESRCH
