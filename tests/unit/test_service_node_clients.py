# SPDX-License-Identifier: Apache-2.0
"""Device time on its way to a View: names as for counts, a source that is down, late or not there at all."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from kubenpu.ledger.clients_file import NAME, LatestClients, read_clients
from kubenpu.ledger.clients_state import write_clients
from kubenpu.ledger.names import NAMES_NAME
from kubenpu.model.clients import COUNT_LIMIT, ClientSample, ClientUse
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.view import ClientTotals, ClientUsage
from kubenpu.service.client_source import BOOT_NS, GRACE_NS
from kubenpu.service.node import SIMULATED_MARK, Node
from tests.fakes.node_world import CLAIM, CONFIRMED, POD, POD_PATH, World, source
from tests.fakes.sim_plan import SimDevice, SimNode
from tests.fakes.sim_sysfs import write_sysfs

GPU = "0000:03:00.0"
DUE_NS = 10**9


def use(cgroup_id: int, path: str = POD_PATH, gfx: int = 7, vram: int = 5, ended: int = 0) -> ClientUse:
    return ClientUse(cgroup_id, path, GPU, 2 * 10**9, {"gfx": gfx}, {"vram": vram}, ended)


def write(node: Node, world: World, *uses: ClientUse, trouble: str = "") -> None:
    sample = ClientSample(DUE_NS - 1, DUE_NS, 1, uses, trouble)
    write_clients(world.settings.run_directory / NAME, node._boot_id, sample, {})


def test_a_client_gets_its_name_without_a_counted_call(world: World, node: Node) -> None:
    cgroup = world.cgroup()
    write(node, world, use(cgroup))
    assert [(client.owner, dict(client.engine_ns)) for client in node.view().clients] == [
        (Owner(OwnerKind.UNKNOWN), {"gfx": 7})
    ]
    world.resolver.answer = lambda _path: CONFIRMED
    node.resolve()
    assert world.resolver.asked[-1] == {POD_PATH: 0}
    (client,) = node.view().clients
    assert client == ClientUsage(POD, GPU, (("gfx", 7),), (("vram", 5),), 0, 2 * 10**9)
    assert NAMES_NAME in os.listdir(world.settings.run_directory)  # noqa: PTH208 - of names


def test_counts_and_time_of_one_owner_are_one_row(world: World, node: Node) -> None:
    cgroup = world.cgroup()
    node.open()
    node.rescan_devices()
    world.store.addresses[0] = GPU
    world.work(cgroup)
    write(node, world, use(cgroup))
    (usage,) = node.view().usage
    (client,) = node.view().clients
    assert usage.clients == client
    assert hash(usage) != hash(replace(usage, clients=None)), "or nobody who watches would be told"


def test_waiting_for_a_name_grows_as_for_counts(world: World, node: Node) -> None:
    write(node, world, use(world.cgroup()))
    node.resolve()
    node.tidy()
    assert [client.owner for client in node.view().clients] == [CLAIM]
    world.now += 100
    node.resolve()
    assert world.resolver.asked[-1] == {POD_PATH: 1}


def test_two_cgroups_of_one_owner_and_those_of_nobody(world: World, node: Node) -> None:
    first, second = world.cgroup(), world.cgroup(f"{POD_PATH}/sub")
    world.resolver.answer = lambda _path: CONFIRMED
    gone = ClientUse(0, "", GPU, 1, {"gfx": 100, "dma": 1}, {}, 2)
    write(node, world, use(first), use(second, f"{POD_PATH}/sub", gfx=3, ended=1), gone)
    node.resolve()
    view = node.view()
    assert [(c.owner, c.engine_ns, c.memory, c.ended) for c in view.clients] == [
        (POD, (("gfx", 10),), (("vram", 10),), 1)
    ]
    assert view.client_totals == (ClientTotals(GPU, (("gfx", 110), ("dma", 1)), 3),)


def test_a_sum_that_cannot_be_is_absent(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: CONFIRMED
    cgroups = {world.cgroup(path): path for path in (POD_PATH, f"{POD_PATH}/sub")}
    write(node, world, *(use(cgroup, path, vram=COUNT_LIMIT - 1) for cgroup, path in cgroups.items()))
    node.resolve()
    assert [(c.engine_ns, c.memory) for c in node.view().clients] == [((("gfx", 14),), ())]


def test_memory_of_which_a_part_is_not_known_is_absent(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: CONFIRMED
    cgroups = {world.cgroup(path): path for path in (POD_PATH, f"{POD_PATH}/sub")}
    first, second = (use(cgroup, path) for cgroup, path in cgroups.items())
    write(node, world, first, second._replace(memory=None))
    node.resolve()
    assert [(c.engine_ns, c.memory) for c in node.view().clients] == [((("gfx", 14),), ())]


def test_what_was_used_before_anybody_looked_goes_with_the_rest(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: CONFIRMED
    cgroups = {world.cgroup(path): path for path in (POD_PATH, f"{POD_PATH}/sub")}
    write(node, world, *(use(cgroup, path)._replace(earlier_ns=3) for cgroup, path in cgroups.items()))
    node.resolve()
    view = node.view()
    assert [client.earlier_ns for client in view.clients] == [total.earlier_ns for total in view.client_totals] == [6]


def test_a_use_keeps_the_name_of_its_dead_pod(world: World, node: Node) -> None:
    """Longer than a standing that nothing needs."""
    cgroup = world.cgroup()
    world.resolver.answer = lambda _path: CONFIRMED
    write(node, world, use(cgroup))
    node.resolve()
    (world.mount / POD_PATH[1:]).rmdir()
    for _ in range(4):
        world.now += 10_000
        node.tidy()
    assert [client.owner for client in node.view().clients] == [POD]
    write(node, world)
    for _ in range(2):
        node.tidy()
    assert cgroup not in node._ledger.names()


def test_without_a_file_there_is_no_source(world: World, node: Node) -> None:
    world.store.taken_ns = BOOT_NS + 1
    assert [s.source for s in node.view().sources if s.source == "clients"] == []
    write(node, world)
    world.store.taken_ns = 0
    assert source(node, "clients") == (True, "")


@pytest.mark.parametrize(("driver", "told"), [("i915", True), ("v3d", True), ("nouveau", False), ("unheard-of", False)])
def test_who_never_looked_is_missed_where_a_driver_tells_something(world: World, driver: str, told: bool) -> None:
    write_sysfs(world.settings.sysfs, [SimDevice(GPU, driver, "8086:5917", 0, (SimNode("card0", 226, 0),))])
    (world.settings.sysfs / SIMULATED_MARK).unlink()
    node = world.start()
    node.rescan_devices()
    node.open()
    world.store.taken_ns = BOOT_NS
    assert [s.source for s in node.view().sources if s.source == "clients"] == [], "it may come yet"
    world.store.taken_ns += 1
    found = [(s.up, s.reason.partition(".")[0]) for s in node.view().sources if s.source == "clients"]
    assert found == ([(False, "kubenpu-clients has not run since boot")] if told else [])


def test_whoever_looks_no_more_has_nothing_to_tell_of(world: World, node: Node) -> None:
    """A total that stands still would say idle. Names are kept meanwhile."""
    cgroup = world.cgroup()
    world.resolver.answer = lambda _path: CONFIRMED
    write(node, world, use(cgroup))
    node.resolve()
    (world.mount / POD_PATH[1:]).rmdir()
    world.store.taken_ns = DUE_NS + GRACE_NS
    assert source(node, "clients") == (True, "")
    shown = node.view()
    world.store.taken_ns += 1
    assert source(node, "clients") == (False, "kubenpu-clients looks no more")
    view = node.view()
    assert (view.clients, view.client_totals) == ((), ())
    assert view.client_generation == 0  # so that the history does not store that nothing was used
    for _ in range(3):
        node.tidy()
    world.store.taken_ns -= 1
    assert (node.view().clients, node.view().client_totals) == (shown.clients, shown.client_totals)
    assert [client.owner for client in shown.clients] == [POD]


def test_its_trouble_is_the_sources(world: World, node: Node) -> None:
    write(node, world, use(world.cgroup()), trouble="no iterator")
    assert source(node, "clients") == (False, "no iterator")
    assert len(node.view().clients) == 1


@pytest.mark.parametrize("content", ["", "{", '{"format":3}', "[]", "\x80", '{"format":3,"boot_id":"B","uses":-1}'])
def test_a_file_that_cannot_be_used(world: World, node: Node, content: str) -> None:
    text = content.replace("B", node._boot_id)
    (world.settings.run_directory / NAME).write_bytes(text.encode("latin-1"))
    up, reason = source(node, "clients")
    assert not up
    assert "Restart kubenpu-clients" in reason
    write(node, world)
    assert source(node, "clients") == (True, "")


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2, 3]",
        b'["1", "/", "gpu", 0, {}, {}, 0, 0]',
        b'[1, "/", "gpu", 0, {"gfx": -1}, {}, 0, 0]',
        b'[1, "/", "gpu", 0, {"gfx": 9223372036854775808}, {}, 0, 0]',
        b'[1, "/", "gpu", 0, [], {}, 0, 0]',
        b'[1, "/", "gpu", 0, {}, [], 0, 0]',
        b'[1, "/", "gpu", 0, {}, {}, 0]',
        b"[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_used(world: World, node: Node, line: bytes) -> None:
    write(node, world, use(1))
    file = world.settings.run_directory / NAME
    head, _, rest = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([head, line, rest, b""]))
    with pytest.raises(SourceError, match="cannot use"):
        read_clients(file, node._boot_id)


def test_the_file_is_read_when_it_is_another_one(world: World, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write(node, world, use(1))
    latest = LatestClients(world.settings.run_directory / NAME, node._boot_id)
    first = latest.read()
    assert latest.read() is first
    write(node, world, use(1, gfx=8))
    again = latest.read()
    assert again is not None
    assert again.uses[0].engine_ns == {"gfx": 8}
    assert LatestClients(world.settings.run_directory / NAME, "another boot").read() is None
