# SPDX-License-Identifier: Apache-2.0
"""The programs as loader bcc loads them, on a kernel that has BTF all the same: what is special about them.

That they count as always is in test_counting.py. The layout is not from headers here but from the BTF.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubenpu.kernel import attach, bpf
from kubenpu.kernel.bcc_loader import KERNEL_STRUCTS
from kubenpu.kernel.hooks import DRM_IOCTL
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.model.errors import KernelError
from kubenpu.model.kinds import Kind
from tests.bpf.conftest import RENDER, SUBMIT, Hooked, cgroup_id, command, finish, this_kernel

TYPED = re.compile(r"ptr_(task_struct|css_set|cgroup|kernfs_node|file|inode)\b")


@pytest.fixture
def without(hooked: Hooked, layout_file: Path) -> Hooked:
    hooked.kernel = layout_file
    return hooked


def test_an_entry_of_a_call_goes_with_its_end(without: Hooked) -> None:
    without.ready()
    without.run(RENDER, command(SUBMIT), 1000, 4)
    with bpf.Map.pinned(without.pins.map("in_flight_by_thread")) as in_flight:
        assert in_flight.keys() == []


def test_replacement_between_loaders_is_exact(without: Hooked, layout_file: Path) -> None:
    """Whichever of the two loads: calls that begin under one and end under the other are counted once."""
    store = without.ready()
    place = without.cgroup("load")
    flood = without.start(RENDER, command(SUBMIT), 600_000, 4, cgroup=place)
    swaps = 0
    while flood.poll() is None and swaps < 20:
        without.kernel = None if without.kernel else layout_file
        assert without.load() == "uprobe"
        swaps += 1
    tally = finish(flood)
    assert swaps >= 3
    mine = [c for c in store.read().cells if c.cgroup_id == cgroup_id(place)]
    assert sum(cell.counts.calls[Kind.SUBMIT] for cell in mine) == tally == 2_400_000


@pytest.mark.parametrize("loader", ["core", "bcc"])
def test_the_verifier_meets_types_of_the_kernel_with_one_loader_only(
    hooked: Hooked, layout_file: Path, loader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel without BTF would refuse them."""
    kernel = layout_file if loader == "bcc" else None
    target = attach.Target("knpu_call", hooked.caller)
    path = attach.object_path(DRM_IOCTL.name)
    request = attach.LoadRequest(DRM_IOCTL, path, hooked.pins, 64, ("uprobe",), 1, target, kernel)
    assert attach.load(request, hooked.facts, Messages(debug=True)).mechanism == "uprobe"
    log = capsys.readouterr().err
    assert "processed" in log
    assert bool(TYPED.search(log)) == (loader == "core")


def test_a_wrong_layout_is_noticed_before_anything_is_attached(
    hooked: Hooked, tmp_path: Path, layout_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers of another build: the cgroup's id is read from somewhere else."""
    with Object(attach.object_path(DRM_IOCTL.name), Messages()) as opened:
        right = this_kernel(opened.btf.structs(KERNEL_STRUCTS))
        size, members = right["kernfs_node"]
        hooked.kernel = tmp_path / "wrong.btf"
        hooked.kernel.write_bytes(
            opened.btf.with_structs({**right, "kernfs_node": (size, {**members, "id": members["id"] - 8})})
        )
    with pytest.raises(KernelError, match="the self-test made a call in cgroup"):
        hooked.load(DRM_IOCTL)
    assert not hooked.pins.attached(DRM_IOCTL)
