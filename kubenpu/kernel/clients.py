# SPDX-License-Identifier: Apache-2.0
"""The pinned iterator that lists who holds an accelerator open: made by kubenpu-probe, read by kubenpu-clients.

Reading it is open and read of a file: it asks for that file's permission and for no privilege. Each open is a fresh
walk of the kernel over its own tables. Owns no fd beyond a call.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kubenpu.kernel import layout
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import KernelError, SourceError
from kubenpu.model.fdinfo import Holder

STEM = "clients"
PROGRAM = "list_holders"
MAJORS = (layout.DRM_MAJOR, layout.ACCEL_MAJOR)
_CHUNK_BYTES = 1 << 16
LONGEST_S = 20.0  # of one reading; a service's watchdog waits longer
_RECORD_BYTES = ctypes.sizeof(layout.Holder)


def pin_iterator(pins: Pins, object_path: Path, messages: Messages, majors: tuple[int, int] = MAJORS) -> None:
    """Loads the program and puts it in the place of the one before, in one step: whoever reads has one or the other."""
    fresh = pins.root / f"{STEM}_fresh"
    with Object(object_path, messages) as opened:
        layout.check(opened.btf.structs(layout.STRUCTS[STEM]), STEM)
        opened.set_constants({"knpu_first_major": majors[0], "knpu_second_major": majors[1]})
        opened.load()
        link = opened.attach(PROGRAM)
        try:
            fresh.unlink(missing_ok=True)
            link.pin(fresh)
            fresh.replace(pins.iterator(STEM))
        except OSError as e:
            raise KernelError(f"cannot pin {e.filename}: {e.strerror}") from e
        finally:
            link.close()


def read_holders(pins: Pins) -> Iterator[Holder]:
    """Every descriptor that is open on an accelerator now. SourceError when that cannot be asked."""
    path = pins.iterator(STEM)
    try:
        with path.open("rb", buffering=0) as file:
            yield from map(_decode, _records(file.fileno()))
    except FileNotFoundError as e:
        raise SourceError(f"{path} is not there", "See what kubenpu-probe says, and start it if it is stopped") from e
    except OSError as e:
        raise SourceError(f"cannot read {path}: {e.strerror}") from e


def _records(fd: int) -> Iterator[bytes]:
    """The kernel returns whole pages, which need not end with a record. After a million descriptors without one of an
    accelerator it says EAGAIN and goes on from there."""
    rest, end = b"", time.monotonic() + LONGEST_S
    while True:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            chunk = None
        if time.monotonic() > end:
            raise SourceError(
                f"more descriptors are open than can be looked at in {LONGEST_S:g} s",
                "Look for the process with millions in /proc/PID/fd",
            )
        if chunk is None:
            continue
        if not chunk:
            return
        rest += chunk
        whole = len(rest) // _RECORD_BYTES * _RECORD_BYTES
        for start in range(0, whole, _RECORD_BYTES):
            yield rest[start : start + _RECORD_BYTES]
        rest = rest[whole:]


def _decode(record: bytes) -> Holder:
    raw = layout.Holder.from_buffer_copy(record)
    node = (raw.rdev >> 20, raw.rdev & 0xFFFFF)
    return Holder(raw.file, raw.cgroup_id, raw.start_ns, raw.ino, *node, raw.tgid, raw.pid, raw.fd, raw.client_id)
