# SPDX-License-Identifier: Apache-2.0
"""Memory from the dmem controller on its way to a View: of which devices and of which cgroups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubenpu.history.snapshot import read_snapshot
from kubenpu.ledger.clients_file import NAME
from kubenpu.ledger.clients_state import write_clients
from kubenpu.model.clients import ClientSample, ClientUse
from kubenpu.model.view import ClientUsage
from kubenpu.service.node import Node
from tests.fakes.node_world import CONFIRMED, POD, POD_PATH, World
from tests.fakes.sim_plan import SimDevice, SimNode
from tests.fakes.sim_sysfs import write_sysfs

GPU, TELLS = "0000:03:00.0", "0000:04:00.0"
DEVICES = (
    SimDevice(GPU, "nouveau", "10de:2684", 0, (SimNode("renderD128", 226, 128),)),
    SimDevice(TELLS, "amdgpu", "1002:7550", 0, (SimNode("renderD129", 226, 129),)),
)


@pytest.fixture
def counting(world: World, node: Node) -> Node:
    """A node with both devices, slot 0 and 1, whose kernel has the controller."""
    write_sysfs(world.settings.sysfs, DEVICES)
    (world.mount / "cgroup.controllers").write_text("cpu memory dmem\n")
    world.resolver.answer = lambda _path: CONFIRMED
    node.open()
    node.rescan_devices()
    world.store.addresses = {0: GPU, 1: TELLS}
    return node


def hold(world: World, path: str, nouveau: int, amdgpu: int = 0) -> None:
    text = f"drm/{GPU}/vram {nouveau}\ndrm/{TELLS}/vram {amdgpu}\n"
    (world.mount / path[1:] / "dmem.current").write_text(text)


def test_memory_of_a_driver_that_tells_none(world: World, counting: Node) -> None:
    world.work(world.cgroup())
    hold(world, POD_PATH, 4096, amdgpu=8192)
    counting.resolve()
    view = counting.view()
    assert view.clients == (ClientUsage(POD, GPU, (), (("dmem:vram", 4096),), 0, 0),)
    assert view.usage[0].clients == view.clients[0]
    assert view.client_totals == (), "of its clients nothing is known, not even that none ended"


def test_a_driver_that_tells_its_memory_is_not_asked_twice(world: World, counting: Node) -> None:
    """Neither when kubenpu-clients looks nor when it does not."""
    cgroup = world.cgroup()
    world.store.addresses = {0: TELLS}
    world.work(cgroup)
    hold(world, POD_PATH, 0, amdgpu=8192)
    assert counting.view().clients == ()
    use = ClientUse(cgroup, POD_PATH, TELLS, 2 * 10**9, {"gfx": 7}, {"vram": 8192}, 0)
    write_clients(world.settings.run_directory / NAME, counting._boot_id, ClientSample(0, 1, 1, (use,)), {})
    counting.resolve()
    assert [client.memory for client in counting.view().clients] == [(("vram", 8192),)]


def test_who_made_no_call_on_the_device_is_not_looked_at(world: World, counting: Node) -> None:
    world.cgroup()
    hold(world, POD_PATH, 4096)
    assert counting.view().clients == ()


def test_two_cgroups_of_one_owner(world: World, counting: Node) -> None:
    """A container that made a cgroup of its own: the outer number has the inner one in it."""
    inner = f"{POD_PATH}/inner"
    world.work(world.cgroup())
    world.work(world.cgroup(inner), inner)
    hold(world, POD_PATH, 5000)
    hold(world, inner, 2000)
    counting.resolve()
    assert [client.memory for client in counting.view().clients] == [(("dmem:vram", 5000),)]


def test_where_it_is_not_on_nothing_is_shown(world: World, counting: Node) -> None:
    world.work(world.cgroup())
    assert counting.view().clients == ()
    hold(world, POD_PATH, 4096)
    (world.mount / "cgroup.controllers").write_text("cpu memory\n")
    assert counting.view().clients == ()


def test_nothing_held_is_known_to_be_nothing(world: World, counting: Node) -> None:
    world.work(world.cgroup())
    hold(world, POD_PATH, 0)
    assert [client.memory for client in counting.view().clients] == [(("dmem:vram", 0),)]


def test_a_cgroup_without_a_path(world: World, counting: Node) -> None:
    world.work(world.cgroup() + 10**6, None)
    assert counting.view().clients == ()


def test_the_history_has_it(world: World, counting: Node) -> None:
    world.work(world.cgroup())
    hold(world, POD_PATH, 4096)
    counting.resolve()
    snapshot = read_snapshot(counting.view(), 0, counting.visibility)
    assert snapshot is not None
    assert [told.memory_bytes for told in snapshot.told.values()] == [4096]
    assert snapshot.told_devices[GPU].memory_bytes == 4096


def test_it_is_loaded_where_a_driver_tells_no_memory() -> None:
    script = "import sys, kubenpu.service.daemon; assert 'kubenpu.kernel.dmem' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)
