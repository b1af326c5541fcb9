# SPDX-License-Identifier: Apache-2.0
"""Character devices outside drm: exact counts by type byte and number, chains of tables, unknown minors, hot plug."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable

from kubenpu.kernel import layout
from kubenpu.kernel.hooks import DRM_IOCTL
from kubenpu.kernel.store import CounterStore
from kubenpu.model.device import Envelope, KindField
from kubenpu.model.kinds import ELSEWHERE, Kind
from kubenpu.model.sample import CommandTable, DeviceRule, NodeRule
from tests.bpf.conftest import RENDER, SUBMIT, Hooked, command, conserved
from tests.bpf.conftest import kinds as drm_kinds

MAJOR = 195
GASKET, APEX = 0xDC, 0x7F


def kinds(**by_nr: int) -> bytes:
    table = bytearray([Kind.OTHER]) * 256
    for name, nr in by_nr.items():
        table[nr] = Kind[name.upper()]
    return bytes(table)


def rule(
    minor: int, slot: int | None, tables: Iterable[CommandTable] = (), major: int = MAJOR, whole: bool = True
) -> NodeRule:
    return NodeRule(major, minor, slot, tuple(tables), whole)


TABLES = (
    CommandTable(0xFFFFFF, 0x300000, kinds(context=1)),  # one command as a whole
    CommandTable(0xFF, GASKET, kinds(map=8, submit=SUBMIT)),
    CommandTable(0xFF, APEX, kinds(free=8)),
)

# do_vfs_ioctl of Linux 6.12, as far as it answers for device nodes.
OF_VFS = (
    *(0x5421, 0x5450, 0x5451, 0x5452, 0x5460, 2),  # FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE, FIGETBSZ
    *(0xC0045877, 0xC0045878, 0xC020660B),  # FIFREEZE, FITHAW, FS_IOC_FIEMAP
    *(0x40049409, 0x4020940D, 0xC0189436),  # FICLONE, FICLONERANGE, FIDEDUPERANGE
    *(0x80111500, 0x80811501),  # FS_IOC_GETFSUUID, FS_IOC_GETFSSYSFSPATH
)
HANDED_ON = (0x541B, 0x80086601, 0x40086602, 1)  # FIONREAD, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FIBMAP


def ready(hooked: Hooked, rules: Iterable[NodeRule]) -> CounterStore:
    hooked.load()
    store = hooked.open()
    for address in ("0000:01:00.0", "0000:02:00.0", "kfd"):
        store.assign_slot(address)
    assert store.write_nodes(rules) == []
    return store


def calls(store: CounterStore, slot: int) -> dict[Kind, int]:
    counted = store.read().after[slot].counts.calls
    return {kind: counted[kind] for kind in Kind if counted[kind]}


def test_type_number_and_whole_commands(hooked: Hooked) -> None:
    store = ready(hooked, [rule(0, 0, TABLES), rule(1, 1)])
    rdev = MAJOR << 20
    for cmd, count in (
        (GASKET << 8 | 8, 10),
        (0xC010 << 16 | GASKET << 8 | 8, 5),  # size and direction mean nothing
        (APEX << 8 | 8, 7),
        (0x30000001, 3),
        (1, 2),  # the same number, another command
        (GASKET << 8 | 9, 4),
        (ord("Z") << 8 | 8, 6),
    ):
        hooked.run(rdev, cmd, count, 1)
    hooked.run(rdev | 1, GASKET << 8 | 8, 11, 1)
    assert calls(store, 0) == {Kind.MAP: 15, Kind.FREE: 7, Kind.CONTEXT: 3, Kind.OTHER: 12}
    assert calls(store, 1) == {Kind.OTHER: 11}
    conserved(store.read())


def test_four_threads_at_full_rate_are_exact(hooked: Hooked) -> None:
    store = ready(hooked, [rule(255, 0, TABLES)])
    done = hooked.run(MAJOR << 20 | 255, GASKET << 8 | SUBMIT, 200_000, 4)
    assert calls(store, 0) == {Kind.SUBMIT: done}
    assert done == 800_000
    sample = store.read()
    assert sample.after[0].counts.errors == (0,) * 7
    assert sample.losses["program_skipped"] == 0
    conserved(sample)


def test_other_devices_and_calls_of_the_vfs_are_not_counted(hooked: Hooked) -> None:
    store = ready(hooked, [rule(0, 0, TABLES), rule(196, 2, major=10, whole=False)])
    for rdev, cmd in ((136 << 20, 0x5401), (10 << 20 | 229, 8), (0, 0), *((MAJOR << 20, cmd) for cmd in OF_VFS)):
        hooked.run(rdev, cmd, 5, 1)
    assert store.read().cells == ()
    assert calls(store, 0) == calls(store, 2) == {}
    assert not any(store.read().losses.values())
    for cmd in HANDED_ON:
        hooked.run(MAJOR << 20, cmd, 5, 1)
    assert calls(store, 0) == {Kind.OTHER: 5 * len(HANDED_ON)}


def test_an_unknown_minor_is_declared_lost(hooked: Hooked) -> None:
    store = ready(hooked, [rule(0, 0)])
    hooked.run(MAJOR << 20 | 3, 8, 5, 1)
    hooked.run(MAJOR << 20 | layout.BLOCK_MINORS, 8, 2, 1)
    assert store.read().losses["device_unknown"] == 7


def test_calls_of_a_device_without_a_slot_are_declared_lost(hooked: Hooked) -> None:
    """Where others share the major, too."""
    store = ready(hooked, [rule(0, 0, TABLES), rule(1, None, TABLES), rule(196, None, TABLES, major=10, whole=False)])
    for minor in (MAJOR << 20 | 1, 10 << 20 | 196):
        hooked.run(minor, GASKET << 8 | 8, 5, 2)
    hooked.run(10 << 20 | 229, GASKET << 8 | 8, 5, 1)
    hooked.run(MAJOR << 20, GASKET << 8 | 8, 3, 1)
    sample = store.read()
    assert sample.losses["device_unknown"] == 20
    assert calls(store, 0) == {Kind.MAP: 3}
    conserved(sample)


def test_devices_come_and_go_and_counters_stay(hooked: Hooked) -> None:
    store = ready(hooked, [rule(0, 0, TABLES), rule(0, 2, TABLES, major=243)])
    hooked.run(MAJOR << 20, GASKET << 8 | 8, 3, 1)
    store.write_nodes([rule(0, 2, TABLES, major=243)])
    hooked.run(MAJOR << 20, GASKET << 8 | 8, 100, 1)  # nobody's now
    store.write_nodes([rule(7, 0, TABLES), rule(0, 2, TABLES, major=243)])
    hooked.run(MAJOR << 20 | 7, GASKET << 8 | 8, 4, 1)
    hooked.run(243 << 20, APEX << 8 | 8, 9, 1)
    assert calls(store, 0) == {Kind.MAP: 7}
    assert calls(store, 2) == {Kind.FREE: 9}
    assert hooked.open().slot_hooks() == {0: ("file_ioctl",), 1: (), 2: ("file_ioctl",)}


def test_a_node_of_drm_and_one_beside_it_count_for_one_device(hooked: Hooked) -> None:
    store = ready(hooked, [rule(0, 0, TABLES)])
    store.write_rules([DeviceRule(226, 128, 0, drm_kinds())])
    hooked.run(RENDER, command(SUBMIT), 10, 2, 5)
    hooked.run(MAJOR << 20, GASKET << 8 | SUBMIT, 5, 1, 1)
    sample = store.read()
    assert calls(store, 0) == {Kind.SUBMIT: 25}
    assert sample.after[0].counts.errors[Kind.SUBMIT] == 4  # of the calls that came through drm
    assert store.slot_hooks()[0] == ("drm_ioctl", "file_ioctl")
    conserved(sample)


EARLY = 0x47


def early_rules(slot: int | None) -> tuple[bytes, NodeRule]:
    """What each hook is told of a device whose driver answers one number before drm_ioctl."""
    of_drm = bytearray(drm_kinds())
    of_drm[EARLY] = ELSEWHERE
    others = bytearray([ELSEWHERE]) * 256
    others[EARLY] = Kind.OTHER
    by_type = KindField(4, 1, 1, 0xFF, {2: Kind.CONTEXT, 7: Kind.MAP})
    table = CommandTable(0, 0, bytes(others), {EARLY: by_type})
    return bytes(of_drm), NodeRule(226, 128, slot, (table,), whole=False, early=True)


def test_a_call_answered_before_drm_ioctl_counts_once_whichever_hooks_see_it(hooked: Hooked) -> None:
    """Here all calls pass both, as on kernels whose nouveau answers none early."""
    of_drm, node = early_rules(0)
    store = ready(hooked, [node])
    assert store.write_rules([DeviceRule(226, 128, 0, of_drm)]) == []
    hooked.run(RENDER, command(SUBMIT), 10, 2, 5)
    hooked.run(RENDER, 24 << 16 | command(EARLY), 30, 4, 5, 0, 2 << 8)
    hooked.run(RENDER, 24 << 16 | command(EARLY), 7, 1, 0, 0, 7 << 8)
    hooked.run(RENDER, 24 << 16 | command(EARLY), 5, 1, 0, 0, 4 << 8)
    hooked.run(RENDER, 24 << 16 | command(EARLY, "Z"), 3, 1, 0, 0, 2 << 8)
    hooked.run(RENDER, command(EARLY), 2, 1)
    hooked.run(RENDER, command(SUBMIT, "Z"), 9, 1)  # which drm_ioctl refuses
    sample = store.read()
    assert calls(store, 0) == {Kind.SUBMIT: 20, Kind.CONTEXT: 123, Kind.MAP: 7, Kind.OTHER: 7}
    assert sample.after[0].counts.errors[Kind.SUBMIT] == 4
    assert sum(sample.after[0].counts.errors) == 4
    assert store.slot_hooks()[0] == ("drm_ioctl", "file_ioctl")  # so its errors and waits are not shown
    assert {name: n for name, n in sample.losses.items() if n} == {"argument_unread": 2}
    conserved(sample)


def test_an_envelope_around_such_a_call_says_nothing(hooked: Hooked) -> None:
    """It is no reason to read what another driver's table wants to be read."""
    before = CommandTable(
        0xFF, GASKET, kinds(), {1: KindField(4, 0, 4, 0xFF, {value: Kind.FREE for value in range(64)})}
    )
    of_drm = bytearray(drm_kinds())
    of_drm[EARLY] = ELSEWHERE
    store = ready(hooked, [rule(0, 1, [before])])
    envelopes = {0x50: Envelope(16, 0, 4, length=4, pointer=8)}
    assert store.write_rules([DeviceRule(226, 128, 0, bytes(of_drm), envelopes)]) == []
    inner = ctypes.create_string_buffer(64)
    outer = ctypes.create_string_buffer(struct.pack("<IIQ", EARLY, 64, ctypes.addressof(inner)))
    call = hooked.direct(DRM_IOCTL)
    for _ in range(10):
        call(RENDER, 3 << 30 | 16 << 16 | command(0x50), ctypes.addressof(outer))
    assert calls(store, 0) == {Kind.OTHER: 10}
    assert not any(store.read().losses.values())


def test_without_a_slot_a_call_answered_early_is_lost_once(hooked: Hooked) -> None:
    store = ready(hooked, [early_rules(None)[1]])
    hooked.run(RENDER, command(EARLY, "Z"), 5, 2)
    hooked.run(RENDER, command(SUBMIT, "Z"), 9, 1)
    assert store.read().losses["device_unknown"] == 10
    hooked.run(RENDER, command(SUBMIT), 3, 1)
    assert store.read().losses["device_unknown"] == 13
    assert store.read().cells == ()


def test_what_does_not_fit_is_refused_and_the_rest_counts(hooked: Hooked) -> None:
    many = [CommandTable(0xFF, value, kinds(map=value)) for value in range(layout.CHAIN + 1)]
    far = [rule(layout.BLOCK_MINORS, 0), rule(0, 0, major=layout.MAJORS - 1), rule(1, 1, many)]
    store = ready(hooked, [])
    assert store.write_nodes([rule(0, 0, TABLES), *far]) == far
    crowd = [rule(0, 0, major=major) for major in range(300, 300 + layout.BLOCKS)]
    assert store.write_nodes([rule(0, 0, TABLES), *crowd]) == crowd[-2:]  # one block is the self-test's
    hooked.run(MAJOR << 20, GASKET << 8 | 8, 3, 1)
    assert calls(store, 0) == {Kind.MAP: 3}


def test_what_is_refused_of_a_major_is_declared_lost(hooked: Hooked) -> None:
    store = ready(hooked, [])
    far = rule(layout.BLOCK_MINORS, 0)
    assert store.write_nodes([far]) == [far]
    hooked.run(MAJOR << 20 | layout.BLOCK_MINORS, GASKET << 8 | 8, 6, 1)
    assert store.read().losses["device_unknown"] == 6


def test_tables_are_shared_and_given_back(hooked: Hooked) -> None:
    store = ready(hooked, [rule(minor, 0, TABLES) for minor in range(layout.TABLES)])
    for value in range(60):
        fresh = [CommandTable(0xFF, value, kinds(map=n)) for n in range(4)]
        assert store.write_nodes([rule(0, 0, TABLES), rule(1, 1, fresh)]) == []
