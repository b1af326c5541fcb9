# SPDX-License-Identifier: Apache-2.0
"""BTF, the description of types that an object or a kernel carries: where structs have their members, and the same with
other places.

Reads libbpf's copy, which belongs to whoever opened it. Knows no more kinds than are asked for.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kubenpu.kernel import bpf
from kubenpu.model.errors import KernelError

_KIND_STRUCT, _KIND_SECTION = 4, 15
Structs = Mapping[str, tuple[int, Mapping[str, int]]]
"""{struct: (size, {member: byte offset})}"""


class _Type(ctypes.Structure):
    _fields_ = (("name_off", ctypes.c_uint32), ("info", ctypes.c_uint32), ("size", ctypes.c_uint32))


class Member(ctypes.Structure):
    """Of a struct; a variable of a section has the same three words: type, offset, size."""

    _fields_ = (("name_off", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32))


class Btf:
    """One description."""

    def __init__(self, pointer: int) -> None:
        self._lib: Any = bpf.library()
        for name in ("btf__raw_data", "btf__type_by_id"):
            getattr(self._lib, name).restype = ctypes.c_void_p
        self._lib.btf__name_by_offset.restype = ctypes.c_char_p
        self._pointer = ctypes.c_void_p(pointer)

    def number(self, name: str, kind: int = _KIND_STRUCT) -> int:
        """Of a type; below 0 when there is none."""
        return int(self._lib.btf__find_by_name_kind(self._pointer, name.encode(), kind))

    def _type(self, number: int) -> int:
        """Where a type is described."""
        return int(self._lib.btf__type_by_id(self._pointer, number))

    def members(self, number: int) -> list[tuple[str, Member]]:
        address = self._type(number)
        count = _Type.from_address(address).info & 0xFFFF
        found = (Member * count).from_address(address + ctypes.sizeof(_Type))
        return [(self._name(member.name_off), member) for member in found]

    def _name(self, offset: int) -> str:
        return str(self._lib.btf__name_by_offset(self._pointer, offset).decode())

    def structs(self, names: Iterable[str]) -> dict[str, tuple[int, dict[str, int]]]:
        """Those of these that there are."""
        numbers = {name: self.number(name) for name in names}
        return {
            name: (
                int(_Type.from_address(self._type(number)).size),
                {member: (place.offset & 0xFFFFFF) // 8 for member, place in self.members(number)},
            )
            for name, number in numbers.items()
            if number >= 0
        }

    def variables(self, section: str, names: Collection[str]) -> dict[str, int]:
        """Offsets of these variables in a section of the object. Raises KernelError when one is not there."""
        offsets = {}
        address = self._type(self.number(section, _KIND_SECTION))
        count = _Type.from_address(address).info & 0xFFFF
        for variable in (Member * count).from_address(address + ctypes.sizeof(_Type)):
            name = self._name(_Type.from_address(self._type(variable.name_off)).name_off)
            if name in names:
                offsets[name] = int(variable.type)
        missing = set(names) - set(offsets)
        if missing:
            raise KernelError(f"the BPF object has no constant {', '.join(sorted(missing))}")
        return offsets

    def with_structs(self, structs: Structs) -> bytes:
        """A copy with these sizes and offsets in place of its own. No bit fields."""
        size = ctypes.c_uint32()
        start = int(self._lib.btf__raw_data(self._pointer, ctypes.byref(size)))
        data = bytearray(ctypes.string_at(start, size.value))
        for name, (bytes_in_all, places) in structs.items():
            number = self.number(name)
            struct.pack_into("=I", data, self._type(number) - start + _Type.size.offset, bytes_in_all)
            for member, place in self.members(number):
                at = ctypes.addressof(place) - start + Member.offset.offset
                struct.pack_into("=I", data, at, 8 * places[member])
        return bytes(data)
