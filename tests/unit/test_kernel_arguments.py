# SPDX-License-Identifier: Apache-2.0
"""From what a table says of arguments to the bytes the kernel reads: every value is found, and no other."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.devices.arguments import MAX_ARGUMENTS, MAX_VALUES
from kubenpu.devices.schema import CHAR
from kubenpu.devices.tables import command_tables, load_tables, rule_arguments, rule_kinds
from kubenpu.kernel import layout
from kubenpu.kernel.arguments import ArgumentBlocks, encode, used
from kubenpu.model.device import Argument, CountField, DriverTable, Envelope, GpuField, KindField
from kubenpu.model.kinds import Kind

TABLES = load_tables(Path("/nonexistent"))
SAYS_KIND, SAYS_SLOT, SAYS_WORK, SAYS_CALL = range(4)


def decoded(argument: Argument, gpus: Mapping[int, int] | None = None) -> layout.Argument:
    return layout.Argument.from_buffer_copy(encode(argument, gpus or {}))


def found(entry: layout.Argument, value: int) -> int:
    """As the kernel program looks it up."""
    index, step = 0, layout.VALUES // 2
    while step:
        if entry.value[index + step] <= value:
            index += step
        step //= 2
    return int(entry.result[index]) if entry.value[index] == value else layout.NO_RESULT


VALUES = st.integers(0, (1 << 64) - 1)


@given(st.dictionaries(VALUES, st.integers(0, layout.KINDS - 1), min_size=1, max_size=MAX_VALUES), VALUES)
def test_every_value_is_found_and_no_other(kinds: dict[int, int], other: int) -> None:
    entry = decoded(KindField(8, 0, 8, (1 << 64) - 1, {value: Kind(kind) for value, kind in kinds.items()}))
    for value, kind in kinds.items():
        assert found(entry, value) == kind
        for near in {value - 1, value + 1} - kinds.keys():
            assert found(entry, near) == layout.NO_RESULT
    assert found(entry, other) == kinds.get(other, layout.NO_RESULT)
    assert list(entry.value) == sorted(entry.value)


def test_gpus_by_slot_and_no_more_than_fit() -> None:
    field = GpuField(88, 36, 4, "gpu_id")
    assert found(decoded(field), 0) == layout.NO_RESULT
    gpus = {1000 - number: number for number in range(layout.VALUES + 9)}
    entry = decoded(field, gpus)
    kept = [gpu for gpu, slot in gpus.items() if found(entry, gpu) == slot]
    assert len(kept) == layout.VALUES
    assert (entry.says, entry.size, entry.offset, entry.width, entry.mask) == (SAYS_SLOT, 88, 36, 4, 0xFFFF_FFFF)


def test_the_places_of_numbers() -> None:
    count = decoded(CountField(56, 32, 2))
    assert (count.says, count.width, count.mask) == (SAYS_WORK, 2, 0xFFFF)
    envelope = decoded(Envelope(16, 0, 4, length=4, pointer=8))
    assert (envelope.says, envelope.length, envelope.pointer) == (SAYS_CALL, 4, 8)
    assert decoded(KindField(8, 0, 1, 0x0F, {1: Kind.MAP})).mask == 0x0F


def shipped() -> list[tuple[DriverTable, bytes, dict[int, Argument]]]:
    found = []
    for table in TABLES.tables:
        for interface in table.interfaces:
            if interface.subsystem == CHAR:
                found += [(table, each.kinds, dict(each.arguments)) for each in command_tables(interface.ioctls)]
            else:
                calls = interface.ioctls
                found.append((table, rule_kinds(TABLES.core, calls), rule_arguments(TABLES.core, calls)))
    return found


@pytest.mark.parametrize(("table", "kinds", "arguments"), shipped(), ids=lambda each: getattr(each, "name", ""))
def test_every_table_fits_and_keeps_its_kinds(table: DriverTable, kinds: bytes, arguments: dict[int, Argument]) -> None:
    memory = bytearray(layout.ARGUMENTS * ctypes.sizeof(layout.Argument))
    taken: set[int] = set()
    placed = ArgumentBlocks(memoryview(memory)).place(kinds, arguments, {}, taken)
    assert placed is not None, table.name
    first, pointing = placed
    assert bytes(byte & 7 for byte in pointing) == kinds
    assert set(used(first, pointing)) == taken
    for nr, byte in enumerate(pointing):
        place = byte >> layout.KIND_BITS
        assert bool(place) is (nr in arguments)
        if place:
            start = (first + place - 1) * ctypes.sizeof(layout.Argument)
            assert memory[start : start + ctypes.sizeof(layout.Argument)] == encode(arguments[nr], {})


def test_all_tables_at_once_fit() -> None:
    blocks = ArgumentBlocks(memoryview(bytearray(layout.ARGUMENTS * ctypes.sizeof(layout.Argument))))
    taken: set[int] = set()
    for table, kinds, arguments in shipped():
        assert blocks.place(kinds, arguments, {}, taken) is not None, table.name
    assert len(taken) < layout.ARGUMENTS // 4


def test_a_table_counts_work_when_it_has_a_unit_and_only_then() -> None:
    for table in TABLES.tables:
        counted = any(
            isinstance(rule.argument, CountField) for interface in table.interfaces for rule in interface.ioctls
        )
        assert counted is (table.work is not None), table.name


def test_numbers_that_other_modules_rely_on() -> None:
    assert layout.KINDS < 1 << layout.KIND_BITS
    assert MAX_ARGUMENTS == (1 << 8 - layout.KIND_BITS) - 1
    assert MAX_VALUES <= layout.VALUES
    assert layout.DEVICE_SLOTS < layout.NO_RESULT
