# SPDX-License-Identifier: Apache-2.0
"""File descriptors of pinned BPF objects: open, ask, look up, update, delete, map into memory.

Thin ctypes over libbpf's system call wrappers; no callbacks (they would need writable and executable memory).
Every fd belongs to the object that holds it and is closed with it. Creates and loads nothing.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

from kubenpu.model.errors import KernelError

LIBRARY = "libbpf.so.1"
BPF_ANY = 0


@cache
def library() -> ctypes.CDLL:
    """libbpf, loaded once. Raises KernelError when the package is not installed."""
    try:
        lib = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as e:
        raise KernelError(f"{LIBRARY} cannot be loaded ({e})", "Install the package libbpf1 (Debian) or libbpf") from e
    lib.libbpf_set_strict_mode(0xFFFFFFFF)
    return lib


class _MapInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
        ("rest", ctypes.c_uint8 * 64),
    )


class _ProgInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("skipped", ctypes.c_uint8 * 184),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 16),
    )


def _info(fd: int, info: ctypes.Structure) -> None:
    size = ctypes.c_uint32(ctypes.sizeof(info))
    _check(library().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)), "read object information")


def _check(result: int, doing: str, remedy: str = "") -> int:
    if result >= 0:
        return result
    code = ctypes.get_errno() or -result
    raise KernelError(f"cannot {doing}: {os.strerror(code)}", remedy) from OSError(code, os.strerror(code))


def open_pin(path: Path) -> int:
    """Opens a pinned map, program or link; returns the fd. FileNotFoundError when nothing is pinned there."""
    fd = int(library().bpf_obj_get(os.fsencode(path)))
    if fd >= 0:
        return fd
    code = ctypes.get_errno() or -fd
    if code == errno.ENOENT:
        raise FileNotFoundError(code, os.strerror(code), str(path))
    remedy = "Run as a user who may read and write it" if code in (errno.EACCES, errno.EPERM) else ""
    raise KernelError(f"cannot open the pinned object {path}: {os.strerror(code)}", remedy)


def pin(fd: int, path: Path) -> None:
    """Pins an fd at `path` below a bpffs mount."""
    remedy = "Mount bpffs where kernel.pin_directory is: mount -t bpf bpf /sys/fs/bpf"
    _check(library().bpf_obj_pin(fd, os.fsencode(path)), f"pin {path}", remedy)


def program_misses(fd: int) -> int:
    """How often the kernel skipped this program because another run of it was preempted on the same CPU."""
    info = _ProgInfo()
    _info(fd, info)
    return int(info.recursion_misses)


def possible_cpus() -> int:
    """One more than the highest CPU number that can ever run; the numbers between may have gaps."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return int(text.replace(",", "-").rsplit("-", 1)[-1]) + 1


@dataclass(frozen=True, slots=True)
class MapShape:
    """What the kernel says of a map: its type number, sizes in bytes, capacity, and its id, which no other map gets."""

    type: int
    key_size: int
    value_size: int
    max_entries: int
    id: int


class Map:
    """An open map. Owns `fd`; `close()` or the end of a `with` block gives it back."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        info = _MapInfo()
        _info(fd, info)
        self.shape = MapShape(info.type, info.key_size, info.value_size, info.max_entries, info.id)

    @classmethod
    def pinned(cls, path: Path) -> Map:
        fd = open_pin(path)
        try:
            return cls(fd)
        except KernelError:
            os.close(fd)
            raise

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Map:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def lookup(self, key: bytes) -> bytes | None:
        """The value of `key`, None when there is no such entry."""
        value = ctypes.create_string_buffer(self.shape.value_size)
        if library().bpf_map_lookup_elem(self.fd, key, value) < 0:
            if ctypes.get_errno() == errno.ENOENT:
                return None
            _check(-1, "look up a map entry")
        return value.raw

    def update(self, key: bytes, value: bytes) -> None:
        _check(library().bpf_map_update_elem(self.fd, key, value, ctypes.c_uint64(BPF_ANY)), "update a map entry")

    def delete(self, key: bytes) -> bool:
        """Deletes an entry; False when there was none."""
        if library().bpf_map_delete_elem(self.fd, key) < 0:
            if ctypes.get_errno() == errno.ENOENT:
                return False
            _check(-1, "delete a map entry")
        return True

    def keys(self) -> list[bytes]:
        """All keys at about this moment. Entries deleted meanwhile may restart the walk; no key is listed twice."""
        found: dict[bytes, None] = {}
        key: bytes | None = None
        following = ctypes.create_string_buffer(self.shape.key_size)
        while len(found) <= self.shape.max_entries:
            if library().bpf_map_get_next_key(self.fd, key, following) < 0:
                break
            key = following.raw
            if key in found:
                break
            found[key] = None
        return list(found)

    @contextmanager
    def memory(self, first: int = 0, count: int | None = None) -> Iterator[memoryview]:
        """`count` values of a BPF_F_MMAPABLE array from `first` on (None: all the others), read and written in place.

        For the block only: all of a mapping counts as memory of the process, also what it never touches.
        """
        stride = (self.shape.value_size + 7) // 8 * 8
        values = self.shape.max_entries - first if count is None else count
        skipped = first * stride % mmap.PAGESIZE
        size = -(-(skipped + values * stride) // mmap.PAGESIZE) * mmap.PAGESIZE
        mapped = _mapped(self.fd, size, mmap.PROT_READ | mmap.PROT_WRITE, first * stride - skipped)
        with memoryview(mapped)[skipped : skipped + values * stride] as view:
            yield view


def _mapped(fd: int, size: int, protection: int, offset: int = 0) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, mmap.MAP_SHARED, protection, offset=offset)
    except OSError as e:
        raise KernelError(f"cannot map a BPF map into memory: {e.strerror}") from e


class Bell:
    """A ring buffer used as a doorbell: what is in it is thrown away, that something came in is the message.

    `fd` can be polled. Owns its mappings; the map stays the caller's.
    """

    def __init__(self, ring: Map) -> None:
        self.fd = ring.fd
        page = mmap.PAGESIZE
        self._consumer = _mapped(ring.fd, page, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = _mapped(ring.fd, page, mmap.PROT_READ, page)
        self._consumed = memoryview(self._consumer).cast("Q")
        self._produced = memoryview(self._producer).cast("Q")

    def silence(self) -> bool:
        """Discards what was announced; True when there was anything."""
        end = self._produced[0]
        if self._consumed[0] == end:
            return False
        self._consumed[0] = end
        return True

    def close(self) -> None:
        self._consumed.release()
        self._produced.release()
        self._consumer.close()
        self._producer.close()
