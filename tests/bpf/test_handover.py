# SPDX-License-Identifier: Apache-2.0
"""Replacing the object under load, reopening the pins, merging cells, and being killed in the middle of it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubenpu.kernel import attach, bpf, layout
from kubenpu.kernel.hooks import DRM_IOCTL, HOOKS
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.kernel.memory import copy_cell
from kubenpu.kernel.pins import claim
from kubenpu.kernel.store import CounterStore
from kubenpu.model.errors import KernelError
from kubenpu.model.kinds import Kind
from kubenpu.model.sample import CellMerge, DeviceRule
from tests.bpf.conftest import RENDER, SUBMIT, Hooked, cells_by_cgroup, cgroup_id, command, conserved, finish, kinds


def test_replacing_the_object_under_load_is_exact(hooked: Hooked) -> None:
    store = hooked.ready()
    place = hooked.cgroup("load")
    flood = hooked.start(RENDER, command(SUBMIT), 900_000, 4, 7, cgroup=place)
    swaps = 0
    while flood.poll() is None and swaps < 50:
        assert hooked.load() == "uprobe"
        swaps += 1
    tally = finish(flood)
    assert swaps >= 3
    counts = cells_by_cgroup(store.read())[cgroup_id(place)].counts
    assert counts.calls[Kind.SUBMIT] == tally == 3_600_000
    assert counts.errors[Kind.SUBMIT] == 4 * (900_000 // 7)
    assert set(store.read().losses.values()) == {0}


def test_a_hook_that_was_taken_off_leaves_its_bodies_and_comes_back_with_others(hooked: Hooked) -> None:
    """The kernel frees a link after its pin is gone; until then its calls need a body, and later none."""
    store = hooked.ready()
    body = hooked.pins.body("drm_ioctl", "enter_body")
    with bpf.Map.pinned(body) as array:
        before = array.shape.id
    attach.detach(hooked.pins, DRM_IOCTL)
    assert body.exists()
    for _ in range(2):  # attached again, then replaced
        assert hooked.load() == "uprobe"
    with bpf.Map.pinned(body) as array:
        assert array.shape.id != before
    hooked.run(RENDER, command(SUBMIT), 1000, 1)
    (cell,) = store.read().cells
    assert cell.counts.calls[Kind.SUBMIT] == 1000
    assert set(store.read().losses.values()) == {0}


def test_reopened_pins_show_the_same_totals(hooked: Hooked) -> None:
    hooked.ready()
    hooked.run(RENDER, command(SUBMIT), 1000, 1)
    again = hooked.open()
    assert again.slots() == {0: "0000:00:02.0"}
    hooked.run(RENDER, command(SUBMIT), 1, 1)
    (cell,) = again.read().cells
    assert cell.counts.calls[Kind.SUBMIT] == 1001


def test_slots_are_remembered_and_end(hooked: Hooked) -> None:
    store = hooked.ready()
    assert [store.assign_slot(f"d{i}") for i in range(layout.SELFTEST_SLOT - 1)] == list(range(1, layout.SELFTEST_SLOT))
    assert store.assign_slot("one too many") is None
    assert store.assign_slot("d5") == 6


def test_a_node_beyond_the_table_is_refused(hooked: Hooked) -> None:
    store = hooked.ready()
    rule = DeviceRule(226, layout.DRM_MINORS, 0, kinds())
    assert store.write_rules([rule]) == [rule]


class KilledError(Exception):
    """Stands for SIGKILL at one instruction."""


@pytest.mark.parametrize("dies_at", range(1, 7))
def test_a_merge_killed_anywhere_is_finished_or_never_happened(
    hooked: Hooked, dies_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hooked.ready()
    place = hooked.cgroup("gone")
    hooked.run(RENDER, command(SUBMIT), 30, 1, 3, cgroup=place)
    place.rmdir()
    (cell,) = store.read().cells
    steps = _merge_dying_at(store, CellMerge(cell.index, cell.device), dies_at, monkeypatch)
    sample = hooked.open().read()
    assert sum(c.counts.calls[Kind.SUBMIT] for c in sample.cells) == 30
    assert sum(c.counts.errors[Kind.SUBMIT] for c in sample.cells) == 10
    assert steps == min(dies_at, 5), "a merge has five writes"
    assert sample.slots_used == (1 if dies_at == 1 else 0)
    conserved(sample)


class Trapped:
    """Shared memory that calls `step` before each write."""

    def __init__(self, view: memoryview, step: Callable[[], None]) -> None:
        self.view, self._step = view, step

    def __setitem__(self, key: object, value: object) -> None:
        self._step()
        self.view[key] = value  # type: ignore[call-overload]  # slices and indexes alike

    def cast(self, form: str) -> Trapped:
        return Trapped(self.view.cast(form), self._step)  # type: ignore[call-overload]  # any form


def _merge_dying_at(store: CounterStore, merge: CellMerge, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs store.merge() with a trap at its n-th write to shared memory; returns how many writes were begun."""
    begun = 0

    def step() -> None:
        nonlocal begun
        begun += 1
        if begun == dies_at:
            raise KilledError

    journal = store._set_journal

    def set_journal(valid: int) -> None:
        step()
        journal(valid)

    @contextmanager
    def cell(index: int) -> Iterator[Trapped]:
        with open_cell(index) as view:
            yield Trapped(view, step)

    open_cell = store._cell
    monkeypatch.setattr(store, "_set_journal", set_journal)
    monkeypatch.setattr(store, "_cell", cell)
    monkeypatch.setattr("kubenpu.kernel.store.copy_cell", lambda view: copy_cell(view.view))
    try:
        store.merge(merge)
    except KilledError:
        pass
    finally:
        monkeypatch.undo()
    return begun


def test_only_who_has_the_claim_finishes_a_merge(hooked: Hooked) -> None:
    """Whoever else opens the maps may find a merge of somebody who is at work."""
    store = hooked.ready()
    begun = layout.Journal(1, 4711, layout.DEVICE_SLOTS, 0, layout.Cell(slot1=1))
    store._journal[: ctypes.sizeof(begun)] = bytes(begun)
    other = CounterStore(hooked.pins.directory)
    other.close()
    assert bytes(store._journal[: ctypes.sizeof(begun)]) == bytes(begun)
    store.recover()
    assert bytes(store._journal[:8]) == bytes(8)


def test_recovery_does_not_free_a_cell_that_was_claimed_again(hooked: Hooked) -> None:
    store = hooked.ready()
    place = hooked.cgroup("old")
    hooked.run(RENDER, command(SUBMIT), 30, 1, cgroup=place)
    (cell,) = store.read().cells
    stale = layout.Journal(1, cell.cgroup_id + 1, cell.index, 0, layout.Cell(slot1=1))
    store._journal[: ctypes.sizeof(stale)] = bytes(stale)
    sample = hooked.open().read()
    assert cells_by_cgroup(sample)[cell.cgroup_id].counts.calls[Kind.SUBMIT] == 30


def test_merging_frees_the_cell_for_others(hooked: Hooked) -> None:
    hooked.slots = 64
    store = hooked.ready()
    places = [hooked.cgroup(f"c{i}") for i in range(65)]
    for place in places:
        hooked.run(RENDER, command(SUBMIT), 1, 1, cgroup=place)
    assert store.read().after[0].lost["slots_full"] == 1
    gone = cells_by_cgroup(store.read())[cgroup_id(places[0])]
    places[0].rmdir()
    store.merge(CellMerge(gone.index, gone.device))
    store.forget_cgroups([gone.cgroup_id])
    store.reopen_search()
    hooked.run(RENDER, command(SUBMIT), 5, 1, cgroup=places[64])
    sample = store.read()
    assert cells_by_cgroup(sample)[cgroup_id(places[64])].counts.calls[Kind.SUBMIT] == 5
    assert gone.cgroup_id not in store.recorded_cgroups()
    conserved(sample)


def test_the_object_fits_the_decoder_and_a_difference_is_refused(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hook in HOOKS:
        with Object(attach.object_path(hook.name), Messages()) as opened:
            structs = layout.STRUCTS[hook.name]
            assert layout.differences(opened.btf.structs(structs), hook.name) == []

    class Other(ctypes.Structure):
        _fields_ = (("hint", ctypes.c_uint64), ("full", ctypes.c_uint64))

    monkeypatch.setitem(layout.STRUCTS["drm_ioctl"], "knpu_alloc", Other)
    with pytest.raises(KernelError, match="knpu_alloc: members"):
        hooked.load()


@pytest.mark.parametrize("left", [0, 64, 5000])
def test_a_damaged_object_is_said_to_be_one(tmp_path: Path, left: int) -> None:
    damaged = tmp_path / "drm_ioctl.bpf.o"
    damaged.write_bytes(attach.object_path(DRM_IOCTL.name).read_bytes()[:left])
    with pytest.raises(KernelError, match="Install the package again or run make bpf"):
        Object(damaged, Messages())


def test_a_damaged_file_of_loader_bcc_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "kernel.btf"
    damaged.write_text("no BTF")
    with (
        Object(attach.object_path(DRM_IOCTL.name), Messages(), damaged) as opened,
        pytest.raises(KernelError, match=f"remove {damaged}"),
    ):
        opened.load()


def test_unloading_leaves_nothing(hooked: Hooked) -> None:
    hooked.ready()
    removed = attach.unload(hooked.pins)
    assert "drm_ioctl_enter_link" in removed
    assert not hooked.pins.directory.exists()
    with pytest.raises(KernelError, match="kubenpu-probe load"):
        CounterStore(hooked.pins.directory)


def test_a_store_that_cannot_map_its_maps_gives_them_back(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked.load()
    fds, mapped = Path("/proc/self/fd"), mmap.mmap
    before, left = len(list(fds.iterdir())), 0

    def refuse_in_the_end(*words: int, **more: int) -> mmap.mmap:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mapped(*words, **more)

    monkeypatch.setattr(mmap, "mmap", refuse_in_the_end)
    for good in (0, 3, 4, 5):  # four maps, then the two parts of the bell
        left = good
        with pytest.raises(KernelError, match="Cannot allocate memory"):
            CounterStore(hooked.pins.directory)
        assert len(list(fds.iterdir())) == before


def test_only_one_reader_may_fold(hooked: Hooked) -> None:
    hooked.ready()
    held = claim(hooked.pins.root)
    with pytest.raises(KernelError, match="another kubenpud"):
        claim(hooked.pins.root)
    os.close(held)
    os.close(claim(hooked.pins.root))


def test_without_one_of_its_maps_everything_begins_anew(hooked: Hooked) -> None:
    hooked.ready()
    hooked.run(RENDER, command(SUBMIT), 10, 1)
    hooked.pins.map("cells").unlink()
    assert attach.drop_incomplete(hooked.pins) == ["cells"]
    store = hooked.ready()
    assert attach.drop_incomplete(hooked.pins) == []
    hooked.run(RENDER, command(SUBMIT), 5, 1)
    sample = store.read()
    assert sum(sample.after[0].counts.calls) == 5
    conserved(sample)


def test_a_half_attached_hook_is_taken_off_and_attached_anew(hooked: Hooked) -> None:
    store = hooked.ready()
    hooked.run(RENDER, command(SUBMIT), 10, 1)
    hooked.pins.link(DRM_IOCTL.name, "exit").unlink()
    assert hooked.load() == "uprobe"
    hooked.run(RENDER, command(SUBMIT), 10, 1, 2)
    (cell,) = store.read().cells
    assert (cell.counts.calls[Kind.SUBMIT], cell.counts.errors[Kind.SUBMIT]) == (20, 5)


def test_a_pinned_map_of_another_shape_is_refused(hooked: Hooked) -> None:
    hooked.ready()
    path = hooked.pins.map("alloc")
    path.unlink()
    with Object(attach.object_path(DRM_IOCTL.name), Messages()) as opened:
        opened.keep_only(set())
        opened.leave_out("cgroup_cells_by_id")
        opened.load()
        bpf.pin(opened.map_fd("journal"), path)
    with pytest.raises(KernelError, match="different versions"):
        hooked.open()
    with pytest.raises(KernelError):
        hooked.load()


def test_a_full_table_does_not_stop_an_upgrade(hooked: Hooked) -> None:
    hooked.slots = 64
    store = hooked.ready()
    for number in range(64):
        hooked.run(RENDER, command(SUBMIT), 1, 1, cgroup=hooked.cgroup(f"c{number}"))
    assert store.read().slots_used == 64
    assert hooked.load() == "uprobe"
    assert store.read().slots_used == 64
