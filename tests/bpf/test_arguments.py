# SPDX-License-Identifier: Apache-2.0
"""What calls say in their arguments: every call counted once whatever is there, as what it says if that can be read.

Calls are made from this process, so that their arguments are memory of its own, of any kind.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import threading
from collections.abc import Callable, Iterable, Mapping

import pytest

from kubenpu.kernel import layout
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL
from kubenpu.kernel.store import CounterStore
from kubenpu.model.device import Argument, CountField, Envelope, GpuField, KindField
from kubenpu.model.kinds import Kind
from kubenpu.model.sample import CellMerge, CommandTable, DeviceRule, NodeRule
from tests.bpf.conftest import RENDER, Hooked, conserved, kinds

NODE = 195 << 20
TYPE = ord("F")
ALLOC, CONTROL, HEAP, CREATE, PLAIN, XFER, WAIT = 0x2B, 0x2A, 0x4A, 0x02, 0x29, 0xD3, 0x41
ARGUMENTS: Mapping[int, Argument] = {
    ALLOC: KindField(32, 12, 4, 0xFFFF_FFFF, {0x3E: Kind.ALLOC, 0x70: Kind.MAP, 0xFFFF_FFFF: Kind.FREE}),
    CONTROL: KindField(8, 6, 2, 0x0FF0, {0x0010: Kind.CONTEXT, 0: Kind.SUBMIT}),
    HEAP: KindField(184, 176, 8, (1 << 64) - 1, {1 << 63: Kind.ALLOC}),
    CREATE: GpuField(88, 36, 4, "gpu_id"),
    XFER: Envelope(16, 0, 4, length=4, pointer=8),
    WAIT: KindField(4, 0, 1, 0xFF, dict.fromkeys(range(100, 132), Kind.WAIT)),
}
GPUS = {4711: 1, 0: 2, 0xFFFF_FFFF: 3}
PAGE = mmap.PAGESIZE
Call = Callable[..., None]


def command(nr: int, size: int) -> int:
    return 3 << 30 | size << 16 | TYPE << 8 | nr


def table() -> CommandTable:
    own = bytearray([Kind.OTHER]) * 256
    own[ALLOC], own[HEAP], own[PLAIN], own[CREATE] = Kind.CONTEXT, Kind.ALLOC, Kind.FREE, Kind.CONTEXT
    return CommandTable(0xFF, TYPE, bytes(own), ARGUMENTS)


class Memory:
    """Two pages of this process; the second can be taken away."""

    def __init__(self) -> None:
        self.pages = mmap.mmap(-1, 2 * PAGE)
        self.view = (ctypes.c_char * (2 * PAGE)).from_buffer(self.pages)
        self.start = ctypes.addressof(self.view)

    def take_second_page(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(self.start + PAGE), PAGE, 0) == 0

    def put(self, content: bytes, at: int = 0) -> int:
        self.pages[at : at + len(content)] = content
        return self.start + at


@pytest.fixture
def memory() -> Memory:
    return Memory()


def ready(hooked: Hooked) -> tuple[CounterStore, Call]:
    """A node of slot 0 that stands for the GPUs of slots 1 to 3, too."""
    hooked.load()
    store = hooked.open()
    for address in ("kfd", "gpu1", "gpu2", "gpu3"):
        store.assign_slot(address)
    assert store.write_nodes([NodeRule(195, 0, 0, (table(),), whole=True, gpus=GPUS)]) == []
    return store, hooked.direct(FILE_IOCTL)


def calls(store: CounterStore, slot: int = 0) -> dict[Kind, int]:
    counted = store.read().after[slot].counts.calls
    return {kind: counted[kind] for kind in Kind if counted[kind]}


def unread(store: CounterStore) -> int:
    return store.read().losses["argument_unread"]


def test_kinds_by_value_under_a_mask(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    for value, times in ((0x3E, 3), (0x70, 5), (0xFFFF_FFFF, 2), (0x71, 7), (0, 1)):
        for _ in range(times):
            call(NODE, command(ALLOC, 32), memory.put(struct.pack("<12xI16x", value)))
    for value in (0xF01F, 0x0010, 0xF00F, 0x0020):  # context, context, submit, not listed
        call(NODE, command(CONTROL, 8), memory.put(struct.pack("<6xH", value)))
    call(NODE, command(HEAP, 184), memory.put(struct.pack("<176xQ", 1 << 63)))
    for value in (99, 100, 115, 131, 132):
        call(NODE, command(WAIT, 4), memory.put(struct.pack("<B3x", value)))
    assert calls(store) == {
        Kind.ALLOC: 3 + 1,
        Kind.MAP: 5,
        Kind.FREE: 2,
        Kind.CONTEXT: 8 + 2,
        Kind.SUBMIT: 1,
        Kind.OTHER: 1 + 2,
        Kind.WAIT: 3,
    }
    assert unread(store) == 0
    conserved(store.read())


def test_what_cannot_be_read_counts_by_its_number_and_is_declared(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    memory.take_second_page()
    kernel = 0xFFFF_8000_0000_0000
    whole = memory.put(struct.pack("<12xI", 0x3E), PAGE - 16)
    call(NODE, command(ALLOC, 32), whole)  # the field is the last that can be read
    bad = [0, 1, 8, kernel, kernel + 8, (1 << 64) - 8, (1 << 64) - 1, memory.start + PAGE, memory.start + PAGE - 13]
    for address in bad:
        call(NODE, command(ALLOC, 32), address)
    for size in (0, 1, 31):  # a command that says a smaller argument
        call(NODE, command(ALLOC, size), whole)
    call(NODE, command(ALLOC, (1 << 14) - 1), whole)
    assert calls(store) == {Kind.ALLOC: 2, Kind.CONTEXT: len(bad) + 3}
    assert unread(store) == len(bad) + 3
    conserved(store.read())


def test_a_page_that_was_never_touched_is_not_waited_for(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    call(NODE, command(ALLOC, 32), memory.start + PAGE)
    assert calls(store) == {Kind.CONTEXT: 1}
    assert unread(store) == 1


def test_gpus_and_the_node_that_stands_for_all(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    for gpu, times in ((4711, 3), (0, 2), (0xFFFF_FFFF, 1), (4712, 4)):
        for _ in range(times):
            call(NODE, command(CREATE, 88), memory.put(struct.pack("<36xI48x", gpu)))
    call(NODE, command(CREATE, 88), 8)
    assert [calls(store, slot) for slot in range(4)] == [{Kind.CONTEXT: n} for n in (5, 3, 2, 1)]
    assert unread(store) == 1
    file_only = ("file_ioctl",)
    assert store.slot_hooks() == {0: file_only, 1: file_only, 2: file_only, 3: file_only}
    conserved(store.read())


def test_only_gpus_that_were_called_lose_what_drm_knows_of_them(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    store.write_rules([DeviceRule(226, 128 + slot, slot, kinds()) for slot in (1, 2)])
    call(NODE, command(CREATE, 88), memory.put(struct.pack("<36xI48x", 4711)))
    assert store.slot_hooks()[1] == ("drm_ioctl", "file_ioctl")
    assert store.slot_hooks()[2] == ("drm_ioctl",)


def envelope(nr: int, size: int, pointer: int) -> bytes:
    return struct.pack("<IIQ", nr, size, pointer)


def test_the_call_in_an_envelope(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    inner = memory.put(struct.pack("<12xI16x", 0x3E), 512)
    gpu = memory.put(struct.pack("<36xI48x", 4711), 1024)
    nested = memory.put(envelope(ALLOC, 32, inner), 2048)
    read = [
        (PLAIN, 0, 0, Kind.FREE),  # nothing to read in it
        (ALLOC, 32, inner, Kind.ALLOC),
        (ALLOC, 1 << 31, inner, Kind.ALLOC),  # what an envelope is for
        (CREATE, 88, gpu, None),
        (XFER, 16, nested, Kind.OTHER),
        (0xFF, 16, inner, Kind.OTHER),
    ]
    for nr, size, pointer, _ in read:
        call(NODE, command(XFER, 16), memory.put(envelope(nr, size, pointer)))
    assert unread(store) == 0
    for nr, size, pointer in ((ALLOC, 31, inner), (ALLOC, 32, 8), (ALLOC, 32, (1 << 64) - 8)):
        call(NODE, command(XFER, 16), memory.put(envelope(nr, size, pointer)))
    for nr in (0x100 | ALLOC, 1 << 31):
        call(NODE, command(XFER, 16), memory.put(envelope(nr, 32, inner)))
    call(NODE, command(XFER, 15), memory.put(envelope(ALLOC, 32, inner)))
    assert unread(store) == 6
    assert calls(store) == {Kind.FREE: 1, Kind.ALLOC: 2, Kind.CONTEXT: 3, Kind.OTHER: 2 + 3}
    assert calls(store, 1) == {Kind.CONTEXT: 1}
    conserved(store.read())


def test_any_argument_leaves_every_call_counted_once(hooked: Hooked, memory: Memory) -> None:
    """Whatever numbers, sizes and addresses are thrown at it. The seed is in the failure."""
    store, call = ready(hooked)
    memory.take_second_page()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    addresses = [0, 1, 8, (1 << 64) - 1, 0xFFFF_8000_0000_0000, memory.start, memory.start + PAGE]
    made = 3000
    for _ in range(made):
        content = chance.randbytes(192)
        if chance.random() < 0.5:
            nr = chance.choice([*ARGUMENTS, chance.randrange(1 << 32)])
            content = envelope(nr, chance.randrange(1 << 32), chance.choice(addresses)) + content[16:]
        place = memory.put(content, PAGE - chance.choice([192, 256, 2048]))
        address = chance.choice([place, place, place + chance.randrange(192), chance.choice(addresses)])
        call(NODE, command(chance.choice(list(ARGUMENTS)), chance.choice([0, 4, 16, 88, 184, 16383])), address)
    sample = store.read()
    counted = sum(sum(total.counts.calls) for total in sample.after.values())
    in_cells = sum(sum(cell.counts.calls) for cell in sample.cells)
    assert (counted, in_cells) == (made, made), seed
    assert {reason for reason, lost in sample.losses.items() if lost} == {"argument_unread"}, seed


def test_an_argument_that_changes_meanwhile_changes_the_kind_only(hooked: Hooked, memory: Memory) -> None:
    store, call = ready(hooked)
    stop = threading.Event()
    field = ctypes.c_uint32.from_address(memory.start + 12)

    def flip() -> None:
        while not stop.is_set():
            field.value = 0x3E if field.value != 0x3E else 0x70

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        for _ in range(2000):
            call(NODE, command(ALLOC, 32), memory.start)
    finally:
        stop.set()
        flipping.join()
    found = calls(store)
    assert sum(found.values()) == 2000
    assert found.keys() <= {Kind.ALLOC, Kind.MAP, Kind.CONTEXT}  # context: a page that was not there yet
    conserved(store.read())


# ---- drm and accel: the begin and the end of a call ----

COUNTED, SELECTED, ASKED = 0x69, 0x42, 0x6C


def drm_rule() -> DeviceRule:
    arguments: Mapping[int, Argument] = {
        COUNTED: CountField(16, 8, 4),
        SELECTED: KindField(8, 0, 4, 0xFFFF_FFFF, {1: Kind.ALLOC, 2: Kind.WAIT}),
        ASKED: KindField(8, 0, 4, 0xFFFF_FFFF, {7: Kind.SUBMIT}),  # a wait by its number
    }
    return DeviceRule(226, 128, 0, kinds(), arguments)


def drm_command(nr: int, size: int = 16) -> int:
    return 3 << 30 | size << 16 | ord("d") << 8 | nr


def ready_drm(hooked: Hooked) -> CounterStore:
    store = hooked.ready()
    assert store.write_rules([drm_rule()]) == []
    return store


def test_work_of_calls_that_returned_well(hooked: Hooked, memory: Memory) -> None:
    store = ready_drm(hooked)
    call = hooked.direct(DRM_IOCTL)
    for jobs, ret in ((1, 0), (64, 0), (0, 0), (500, -22), (layout.WORK_MAX, 0)):
        call(RENDER, drm_command(COUNTED), memory.put(struct.pack("<8xI4x", jobs)), ret)
    for jobs in (layout.WORK_MAX + 1, 0xFFFF_FFFF):  # not believed
        call(RENDER, drm_command(COUNTED), memory.put(struct.pack("<8xI4x", jobs)))
    call(RENDER, drm_command(COUNTED), 8)
    sample = store.read()
    (cell,) = sample.cells
    assert cell.counts.work == sample.after[0].counts.work == 1 + 64 + layout.WORK_MAX
    assert cell.counts.calls[Kind.SUBMIT] == 8
    assert cell.counts.errors[Kind.SUBMIT] == 1
    assert sample.losses["argument_unread"] == 3
    conserved(sample)


def test_kinds_are_those_at_the_begin_and_waits_are_timed(hooked: Hooked, memory: Memory) -> None:
    store = ready_drm(hooked)
    call = hooked.direct(DRM_IOCTL)
    for nr, value, times in ((SELECTED, 1, 4), (SELECTED, 2, 3), (SELECTED, 9, 2), (ASKED, 7, 5), (ASKED, 8, 6)):
        for _ in range(times):
            call(RENDER, drm_command(nr, 8), memory.put(struct.pack("<I4x", value)), -4)
    sample = store.read()
    assert calls(store) == {Kind.ALLOC: 4, Kind.WAIT: 3 + 6, Kind.OTHER: 2, Kind.SUBMIT: 5}
    assert sample.after[0].counts.errors == sample.after[0].counts.calls
    assert sample.after[0].counts.wait_ns > 0
    assert sample.losses["wait_untimed"] == sample.losses["argument_unread"] == 0


def test_a_driver_that_writes_over_the_argument(hooked: Hooked) -> None:
    """The function that is hooked does; threads at full rate, every fifth call fails."""
    store = ready_drm(hooked)
    a, b = hooked.cgroup("a"), hooked.cgroup("b")
    done = hooked.run(RENDER, drm_command(SELECTED, 8), 50_000, 4, 0, 0, 1, cgroup=a)
    assert calls(store) == {Kind.ALLOC: done} == {Kind.ALLOC: 200_000}
    arguments: Mapping[int, Argument] = {COUNTED: CountField(8, 0, 8)}
    store.write_rules([DeviceRule(226, 128, 0, kinds(), arguments)])
    hooked.run(RENDER, drm_command(COUNTED, 8), 50_000, 4, 5, 0, 3, cgroup=b)
    sample = store.read()
    assert sample.after[0].counts.work == 3 * 160_000
    assert sorted(cell.counts.work for cell in sample.cells) == [0, 480_000]
    assert not any(sample.losses.values())
    conserved(sample)


def test_folding_keeps_work(hooked: Hooked, memory: Memory) -> None:
    store = ready_drm(hooked)
    call = hooked.direct(DRM_IOCTL)
    for jobs in (3, 4):
        call(RENDER, drm_command(COUNTED), memory.put(struct.pack("<8xI4x", jobs)))
    (cell,) = store.read().cells
    store.merge(CellMerge(cell.index, 0))
    (departed,) = store.read().cells
    assert (departed.cgroup_id, departed.counts.work) == (0, 7)


# ---- the map ----


def different(count: int, salt: int = 0) -> dict[int, Argument]:
    return {nr: KindField(8, 0, 8, (1 << 64) - 1, {salt << 8 | nr: Kind.MAP}) for nr in range(count)}


def test_places_are_shared_given_back_and_end(hooked: Hooked) -> None:
    store = hooked.ready()

    def rules(counts: Iterable[int], salt: int = 0) -> list[DeviceRule]:
        return [DeviceRule(226, at, 0, kinds(), different(n, salt + at)) for at, n in enumerate(counts)]

    for salt in range(0, 64, 8):  # each time others; those before are in use while these are written
        assert store.write_rules(rules([16] * 8, salt << 8)) == []
    full = rules([31] * 9)
    assert store.write_rules([]) == []
    assert store.write_rules(full) == full[8:]
    shared = [DeviceRule(226, at, 0, kinds(), different(31, 99)) for at in range(60)]
    assert store.write_rules(shared[:1]) == shared[:1]  # no room beside those in use
    store.write_rules([])
    assert store.write_rules(shared) == []
    nodes = [NodeRule(195, 0, 0, (CommandTable(0xFF, TYPE, kinds(), different(31, 7)),), whole=True)]
    assert store.write_nodes(nodes) == []
    assert store.write_rules(rules([31] * 6)) == []  # none of them on the places of the node
    assert store.write_nodes(nodes) == []


def test_too_many_for_one_rule_are_refused(hooked: Hooked) -> None:
    store = hooked.ready()
    rule = DeviceRule(226, 1, 0, kinds(), different(32))
    assert store.write_rules([rule]) == [rule]
    same = {nr: KindField(8, 0, 8, (1 << 64) - 1, {1: Kind.MAP}) for nr in range(256)}
    assert store.write_rules([DeviceRule(226, 1, 0, kinds(), same)]) == []
