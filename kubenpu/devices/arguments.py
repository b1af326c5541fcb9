# SPDX-License-Identifier: Apache-2.0
"""What a driver table may say about the argument of a call: one [argument.NAME] in, a field or a ConfigError out.

Pure. Everything is bounded, because a kernel program reads these places in memory that a process chose.
"""

from __future__ import annotations

from kubenpu.devices.section import Section
from kubenpu.model.device import Argument, CountField, Envelope, GpuField, KindField
from kubenpu.model.kinds import KIND_LABELS, KINDS, Kind

# The size of an argument has 14 bits in a command.
MAX_ARGUMENT_BYTES = (1 << 14) - 1
MAX_VALUES = 32
MAX_ARGUMENTS = 31  # of one interface: what kubenpu/kernel/arguments.py can hold of one table
GPU_KEYS = ("gpu_id",)
_WIDTHS = (1, 2, 4, 8)
_MEANINGS = ("kinds", "count", "gpu", "envelope")
_KEYS = f"size, offset, bytes, one of {', '.join(_MEANINGS)}, and mask beside kinds"


def parse_argument(section: Section) -> Argument:
    """The field that a section describes."""
    size = section.take_number("size", range(1, MAX_ARGUMENT_BYTES + 1))
    width = section.take("bytes", int)
    if width not in _WIDTHS:
        raise section.refuse("bytes", width, "1, 2, 4 or 8")
    offset = _take_offset(section, "offset", width, size)
    meanings = [meaning for meaning in _MEANINGS if section.has(meaning)]
    if len(meanings) != 1:
        raise section.refuse("meaning", meanings, f"one of {', '.join(_MEANINGS)}")
    field: Argument
    if meanings == ["kinds"]:
        mask = section.take_number("mask", range(1, 1 << 8 * width), (1 << 8 * width) - 1)
        field = KindField(size, offset, width, mask, _take_kinds(section, mask))
    elif meanings == ["count"]:
        if not section.take("count", bool):
            raise section.refuse("count", False, "true, or not there")
        field = CountField(size, offset, width)
    elif meanings == ["gpu"]:
        field = GpuField(size, offset, width, section.take_choice("gpu", GPU_KEYS))
    else:
        envelope = section.take_section("envelope")
        length, pointer = (_take_offset(envelope, *place, size) for place in (("length", 4), ("pointer", 8)))
        envelope.finish("length and pointer")
        field = Envelope(size, offset, width, length, pointer)
    section.finish(_KEYS)
    return field


def _take_offset(section: Section, key: str, width: int, size: int) -> int:
    """Aligned, as compilers lay out arguments, and with the whole field inside the smallest argument."""
    offset = section.take_number(key, range(MAX_ARGUMENT_BYTES))
    if offset + width > size or offset % width:
        raise section.refuse(key, offset, f"a multiple of {width} with {width} bytes before the end, {size}")
    return offset


def _take_kinds(section: Section, mask: int) -> dict[int, Kind]:
    kinds: dict[int, Kind] = {}
    lists = section.take_section("kinds")
    for kind in KINDS:
        for value in lists.take(kind.label, list, []):
            if type(value) is not int or value & ~mask or value < 0 or value in kinds:
                raise lists.refuse(kind.label, value, "a list of numbers within the mask, each given once")
            kinds[value] = kind
    lists.finish(", ".join(KIND_LABELS))
    if not 1 <= len(kinds) <= MAX_VALUES:
        raise section.refuse("kinds", len(kinds), f"1 to {MAX_VALUES} values")
    return kinds
