# SPDX-License-Identifier: Apache-2.0
"""What the kernel is to read in the arguments of calls: the map arguments, and the bytes of kinds that point into it.

Works on mapped memory while the kernel reads it. The arguments of one rule or table stand side by side, written before
it refers to them, where nothing refers to now. Kept nowhere else, so whoever writes next finds what there is. The owner
serialises, and gives the view.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from kubenpu.kernel import layout
from kubenpu.model.device import Argument, CountField, Envelope, GpuField, KindField

_BYTES = ctypes.sizeof(layout.Argument)
_KIND, _SLOT, _WORK, _CALL = range(len(layout.MEANINGS))
_MOST = (1 << 8 - layout.KIND_BITS) - 1  # arguments of one rule


class ArgumentBlocks:
    """The map of one node."""

    def __init__(self, arguments: memoryview) -> None:
        self._view = arguments

    def place(
        self, kinds: bytes, arguments: Mapping[int, Argument], gpus: Mapping[int, int], taken: set[int]
    ) -> tuple[int, bytes] | None:
        """Where the arguments of these calls stand, and `kinds` with the places in them; None when there is no room.

        `arguments` by ioctl number; `gpus` has the device slot of every GPU; `taken` grows by what is used here.
        """
        by_nr = {nr: encode(argument, gpus) for nr, argument in sorted(arguments.items())}
        different = list(dict.fromkeys(by_nr.values()))
        if not different:
            return 0, kinds
        first = self._find(b"".join(different), taken) if len(different) <= _MOST else None
        if first is None:
            return None
        taken.update(range(first, first + len(different)))
        pointing = bytearray(kinds)
        for nr, entry in by_nr.items():
            pointing[nr] |= different.index(entry) + 1 << layout.KIND_BITS
        return first, bytes(pointing)

    def _find(self, block: bytes, taken: set[int]) -> int | None:
        """Where these very arguments stand already, else free places into which they are written."""
        length = len(block) // _BYTES
        starts = range(layout.ARGUMENTS - length + 1)
        for start in starts:
            if taken.issuperset(range(start, start + length)) and self._at(start, length) == block:
                return start
        free = next((start for start in starts if taken.isdisjoint(range(start, start + length))), None)
        if free is not None:
            self._view[free * _BYTES : (free + length) * _BYTES] = block
        return free

    def _at(self, start: int, length: int) -> memoryview:
        return self._view[start * _BYTES : (start + length) * _BYTES]


def used(first: int, kinds: bytes) -> range:
    """The places that a rule or table refers to."""
    return range(first, first + (max(kinds) >> layout.KIND_BITS))


def encode(argument: Argument, gpus: Mapping[int, int]) -> bytes:
    """knpu_argument. Of GPUs there are as many as it can hold, the others stay with the node that stands for all."""
    entry = layout.Argument(width=argument.width, size=argument.size, offset=argument.offset)
    entry.mask = (1 << 8 * argument.width) - 1
    results: Mapping[int, int] = {}
    match argument:
        case KindField():
            entry.says, entry.mask, results = _KIND, argument.mask, argument.kinds
        case GpuField():
            entry.says, results = _SLOT, gpus
        case CountField():
            entry.says = _WORK
        case Envelope():
            entry.says, entry.length, entry.pointer = _CALL, argument.length, argument.pointer
    known = sorted(results.items())[: layout.VALUES] or [(0, layout.NO_RESULT)]
    for index in range(layout.VALUES):
        entry.value[index], entry.result[index] = known[min(index, len(known) - 1)]
    return bytes(entry)
