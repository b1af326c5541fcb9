# SPDX-License-Identifier: Apache-2.0
"""Counts against the workload's own tally: every call, every error, in the right cgroup, at full rate."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

import pytest

from kubenpu.kernel import attach, bpf, layout
from kubenpu.kernel.hooks import DRM_IOCTL
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.model.kinds import Kind
from kubenpu.model.sample import KernelSample
from tests.bpf.conftest import (
    OTHER,
    RENDER,
    SUBMIT,
    WAIT,
    Hooked,
    cells_by_cgroup,
    cgroup_id,
    command,
    conserved,
    finish,
)


@pytest.fixture(params=["storage", "hash", "no btf"])
def variant(request: pytest.FixtureRequest, hooked: Hooked, layout_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways from a cgroup to its cell: local storage (6.2 and later), hash (6.1); the hash as loader bcc has it."""
    if request.param == "no btf":
        hooked.kernel = layout_file
    if request.param == "storage" and not attach.has_cgroup_storage():
        pytest.fail("the kernel of this machine should have cgroup local storage")
    monkeypatch.setattr(attach, "has_cgroup_storage", lambda: request.param == "storage")


@pytest.mark.usefixtures("variant")
def test_every_call_of_sixteen_threads_in_two_cgroups_is_counted(hooked: Hooked) -> None:
    store = hooked.ready()
    a, b = hooked.cgroup("a"), hooked.cgroup("b")
    flood = hooked.start(RENDER, command(SUBMIT), 20_000, 16, cgroup=a)
    tally_b = hooked.run(RENDER, command(OTHER), 10_000, 1, 10, cgroup=b)
    tally_a = finish(flood)
    sample = store.read()
    cells = cells_by_cgroup(sample)
    assert cells[cgroup_id(a)].counts.calls[Kind.SUBMIT] == tally_a == 320_000
    assert cells[cgroup_id(b)].counts.calls[Kind.OTHER] == tally_b == 10_000
    assert cells[cgroup_id(b)].counts.errors[Kind.OTHER] == 1_000
    assert sum(cells[cgroup_id(a)].counts.errors) == 0
    assert sample.after[0].counts.calls == (tally_a, 0, 0, 0, 0, 0, tally_b)
    assert sample.after[0].counts.errors[Kind.OTHER] == 1_000
    assert set(sample.losses.values()) == {0}
    conserved(sample)


@pytest.mark.usefixtures("variant")
def test_waits_are_timed(hooked: Hooked) -> None:
    store = hooked.ready()
    begin = time.monotonic_ns()
    tally = hooked.run(RENDER, command(WAIT), 20, 4, 0, 5_000)
    elapsed = time.monotonic_ns() - begin
    (cell,) = store.read().cells
    assert cell.counts.calls[Kind.WAIT] == tally == 80
    assert 80 * 5_000_000 <= cell.counts.wait_ns <= 4 * elapsed
    assert store.read().losses["wait_untimed"] == 0


@pytest.mark.parametrize(("node", "number"), [(RENDER, command(SUBMIT, "T")), (1 << 20 | 5, command(SUBMIT, "T"))])
def test_a_call_that_no_driver_sees_is_neither_counted_nor_lost(hooked: Hooked, node: int, number: int) -> None:
    store = hooked.ready()
    assert hooked.run(node, number, 100, 1) == 100
    sample = store.read()
    assert sample.cells == ()
    assert set(sample.losses.values()) == {0}


@pytest.mark.parametrize("node", [226 << 20 | 7, 226 << 20 | 5000, 261 << 20 | 3, 261 << 20 | 999])
def test_a_device_without_a_rule_is_declared_lost(hooked: Hooked, node: int) -> None:
    store = hooked.ready()
    assert hooked.run(node, command(SUBMIT), 100, 1) == 100
    assert store.read().cells == ()
    assert store.read().losses["device_unknown"] == 100


@pytest.mark.usefixtures("variant")
def test_names_are_captured_in_the_kernel(hooked: Hooked) -> None:
    store = hooked.ready()
    hostile = b'kubepods.slice/cri-containerd-\xff\xfe\x1b[31m"x".scope'
    deep = "deep/" + "/".join(f"level{i}" for i in range(30))
    long = "n" * 255
    places = [hooked.cgroup(hostile), hooked.cgroup(deep), hooked.cgroup(long)]
    for place in places:
        hooked.run(RENDER, command(SUBMIT), 1, 1, cgroup=place)
    records = store.read().cgroups
    mount = hooked.cgroup_root.parent
    for place, truncated in zip(places, (False, True, False), strict=True):
        record = records[cgroup_id(place)]
        assert record.truncated == truncated
        expected = "/" + str(place.relative_to(mount))
        assert record.path == expected if not truncated else expected.startswith(record.path + "/")
        assert os.fsencode(record.path) in os.fsencode(place)


@pytest.mark.usefixtures("variant")
def test_a_cgroup_is_announced_once_and_outlives_its_directory(hooked: Hooked) -> None:
    store = hooked.ready()
    store.bell.silence()
    place = hooked.cgroup("short")
    identity = cgroup_id(place)
    hooked.run(RENDER, command(SUBMIT), 5, 1, cgroup=place)
    assert store.bell.silence()
    hooked.run(RENDER, command(SUBMIT), 5, 1, cgroup=place)
    assert not store.bell.silence()
    place.rmdir()
    sample = store.read()
    assert cells_by_cgroup(sample)[identity].counts.calls[Kind.SUBMIT] == 10
    assert Path(sample.cgroups[identity].path).name == "short"


@pytest.mark.usefixtures("variant")
def test_names_that_found_no_room_are_taken_at_a_later_call(hooked: Hooked) -> None:
    """Each cgroup without names is declared once, and no more when it has them; its calls are counted all along."""
    hooked.pins.make()
    with Object(attach.object_path(DRM_IOCTL.name), Messages()) as opened:
        opened.keep_only(set())
        opened.leave_out("cgroup_cells_by_id")
        opened.set_capacity("cgroups", 4)  # one is this process's, for the self-test
        opened.load()
        bpf.pin(opened.map_fd("cgroups"), hooked.pins.map("cgroups"))
    store = hooked.ready()
    places = [hooked.cgroup(f"c{i}") for i in range(5)]

    def call_from(some: list[Path]) -> KernelSample:
        for place in some:
            hooked.run(RENDER, command(SUBMIT), 100, 4, cgroup=place)
        return store.read()

    for _ in range(2):
        sample = call_from(places)
        assert sample.losses["identity"] == 2
        assert cells_by_cgroup(sample).keys() - sample.cgroups.keys() == {cgroup_id(place) for place in places[3:]}
    assert {c.counts.calls[Kind.SUBMIT] for c in sample.cells} == {800}
    store.forget_cgroups({cgroup_id(place) for place in places[:2]})
    sample = call_from(places[3:])
    assert sample.losses["identity"] == 0
    assert {Path(sample.cgroups[cgroup_id(place)].path).name for place in places[3:]} == {"c3", "c4"}
    conserved(sample)


@pytest.mark.parametrize(("by_cpu", "told"), [((3, -2), 1), ((0, -1), 0)])
def test_what_was_found_again_is_not_lost(hooked: Hooked, by_cpu: tuple[int, int], told: int) -> None:
    """On whichever CPU; a reading may come between the loss on one and its end on another."""
    store = hooked.ready()
    for cpu, lost in enumerate(by_cpu):
        at = cpu * ctypes.sizeof(layout.Losses) + 8 * layout.NODE_LOSSES.index("identity")
        struct.pack_into("=q", store._losses, at, lost)
    assert store.read().losses["identity"] == told


@pytest.mark.usefixtures("variant")
def test_a_full_table_keeps_what_it_has_and_declares_the_rest(hooked: Hooked) -> None:
    hooked.slots = 64
    store = hooked.ready()
    places = [hooked.cgroup(f"c{i}") for i in range(80)]
    for _ in range(2):
        for place in places:
            hooked.run(RENDER, command(SUBMIT), 100, 1, cgroup=place)
    sample = store.read()
    assert (sample.slots_used, sample.slots_max) == (64, 64)
    assert sorted(cells_by_cgroup(sample)) == sorted(cgroup_id(p) for p in places[:64])
    assert {c.counts.calls[Kind.SUBMIT] for c in sample.cells} == {200}
    assert sample.after[0].lost == {"slots_full": 16 * 200, "no_storage": 0}
    conserved(sample)


def test_a_reading_makes_no_system_call_on_a_map(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a call, preempted, keeps kprobe programs from running on its CPU."""
    store = hooked.ready()
    hooked.run(RENDER, command(SUBMIT), 10, 1)
    assert len(store.read().cgroups) == 1

    def refuse(*_: object) -> None:
        raise AssertionError("a system call on a map")

    for name in ("lookup", "update", "delete", "keys"):
        monkeypatch.setattr(bpf.Map, name, refuse)
    hooked.run(RENDER, command(SUBMIT), 10, 1)
    assert store.read().cells[0].counts.calls[Kind.SUBMIT] == 20
    store.write_rules([])
