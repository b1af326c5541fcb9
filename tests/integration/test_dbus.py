# SPDX-License-Identifier: Apache-2.0
"""D-Bus over a real bus: what busctl and the client show, what subscribers hear, and a bus that comes and goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubenpu.api import dbus as api
from kubenpu.exporters import dbus
from kubenpu.exporters.dbus_client import NodeClient
from kubenpu.exporters.dbus_connection import Connection, from_wire
from kubenpu.model.device import Device
from kubenpu.model.errors import SourceError
from kubenpu.model.view import DeviceUsage
from tests.fakes.dbus_node import GPU_PATH, IGPU, NPU, NPU_PATH, OFF, POD, VIEW, FakeNode, counts, many
from tests.fakes.private_bus import (
    DEADLINE_S,
    PrivateBus,
    Serving,
    eventually,
    method,
    subscribe,
    with_connection,
)
from tests.fakes.sim_metrics import free_url

ROOT = Path(__file__).parents[2]


# ---- what is shown ----


def test_busctl_shows_it_all(bus: PrivateBus, served: Serving) -> None:
    tree = bus.busctl("tree", "--list", api.NAME).stdout.split()
    assert tree == ["/", "/io", api.PATH, api.DEVICES_PATH, GPU_PATH, NPU_PATH]
    shown = bus.busctl("introspect", api.NAME, api.PATH).stdout
    for member in ("GetCounters", "Reload", "WorkloadSeen", "GetManagedObjects"):
        assert f".{member} " in shown
    assert '1 "drm_ioctl" "fentry"' in shown
    values = {
        line.split()[0]: line.split()[3] for line in bus.busctl("introspect", api.NAME, NPU_PATH).stdout.splitlines()
    }
    assert (values[".Address"], values[".Driver"], values[".NumaNode"]) == ('"npu.0"', "-", "-")


def test_busctl_gives_json(bus: PrivateBus, served: Serving) -> None:
    answer = bus.busctl("--json=short", "call", api.NAME, api.PATH, api.NODE.name, "ListDevices").stdout
    (devices,) = json.loads(answer)["data"]
    assert devices[0]["Address"]["data"] == IGPU
    assert devices[0]["Counters"]["data"]["Calls"]["data"]["submit"] == 140
    assert devices[1].keys() == {"Address", "Nodes"}


def test_objects_are_managed(bus: PrivateBus, served: Serving) -> None:
    answer = bus.busctl("--json=short", "call", api.NAME, api.PATH, api.OBJECT_MANAGER.name, "GetManagedObjects").stdout
    (objects,) = json.loads(answer)["data"]
    assert {path: list(interfaces) for path, interfaces in objects.items()} == {
        GPU_PATH: [api.DEVICE.name],
        NPU_PATH: [api.DEVICE.name],
    }


def test_client_reads_what_the_node_has(bus: PrivateBus, served: Serving) -> None:
    with NodeClient(bus.address) as client:
        said = client.node()
        assert (said.version, said.node, said.hooks, said.counting_since) == (
            "1.2.3",
            "node-1",
            {"drm_ioctl": "fentry"},
            1700000000,
        )
        gpu, npu = client.devices()
        assert (gpu.address, gpu.nodes, gpu.numa_node) == (IGPU, (("dri/card1", 226, 1),), 0)
        assert gpu.counts is not None
        assert gpu.counts.calls["submit"] == 140
        assert (npu.address, npu.driver, npu.numa_node, npu.counts) == (NPU, None, None, None)
        rows = client.counters({"Pod": "web-0"})
        assert [(row.owner, row.device) for row in rows] == [(POD, IGPU), (POD, NPU)]
        assert rows[0].counts.wait_ns == 1_500_000_000
        assert "submit" not in rows[1].counts.calls


def test_twenty_thousand_counters_come_in_pages(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    node.shown = many(20_000)
    with NodeClient(bus.address) as client:
        assert [row.owner for row in client.counters()] == [usage.owner for usage in node.shown.usage]
    assert "page with GetCounters" in bus.call("ListWorkloads").stderr


def test_no_kubenpud_is_not_started(bus: PrivateBus) -> None:
    with NodeClient(bus.address) as client, pytest.raises(SourceError, match="systemctl start kubenpud"):
        client.node()


def test_no_bus_for_the_client() -> None:
    with NodeClient("unix:abstract=kubenpu-test-nothing") as client, pytest.raises(SourceError, match="no message bus"):
        client.node()


# ---- signals ----


def test_changes_are_told(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    fresh = Device("0000:03:00.0", "drm", "xe", "xe", None, 1, (), "/sys/z")
    busier = DeviceUsage(IGPU, "i915", counts(141, 21, 0, 0, 7), VIEW.device_usage[0].departed, {}, 0, 1700000000.0)
    unit = replace(VIEW.usage[0], owner=replace(VIEW.usage[0].owner, unit="new.service"))
    later = replace(
        VIEW, devices=(VIEW.devices[0], fresh), device_usage=(busier,), usage=(*VIEW.usage, unit), counting_since=None
    )

    async def work(connection: Connection) -> list[Any]:
        heard = await subscribe(connection)
        node.shown = later
        served.changed()
        while len(heard) < 7:
            await asyncio.wait([connection.reading], timeout=0.01)
        return heard

    heard = with_connection(bus, work)
    by_member = {message.member: (message.path, from_wire(message.body)) for message in heard}
    path = api.device_path(fresh.address)
    assert by_member["DeviceRemoved"] == (api.PATH, [NPU_PATH])
    assert by_member["InterfacesRemoved"] == (api.PATH, [NPU_PATH, [api.DEVICE.name]])
    assert by_member["DeviceAdded"] == (api.PATH, [path])
    assert by_member["InterfacesAdded"][1][1][api.DEVICE.name]["NumaNode"] == 1
    assert by_member["WorkloadSeen"][1][0]["Unit"] == "new.service"
    changes = {m.path: from_wire(m.body) for m in heard if m.member == "PropertiesChanged"}
    assert changes[api.PATH] == [api.NODE.name, {}, ["CountingSince"]]
    assert list(changes[GPU_PATH][1]) == ["Counters"]
    assert changes[GPU_PATH][1]["Counters"]["Calls"]["submit"] == 141


def test_nothing_is_said_when_nothing_changed(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    async def work(connection: Connection) -> list[Any]:
        heard = await subscribe(connection)
        for _ in range(3):
            asked = node.view_count
            served.changed()
            while node.view_count == asked:
                await asyncio.wait([connection.reading], timeout=0.01)
        await connection.call(method("ListDevices"))
        return heard

    assert with_connection(bus, work) == []


def test_not_more_than_one_round_a_second(bus: PrivateBus, node: FakeNode) -> None:
    """What changes meanwhile is one change."""

    async def work(connection: Connection) -> tuple[float, list[Any]]:
        heard = await subscribe(connection)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        with Serving(node, bus.address) as serving:
            number = 0
            while len(heard) < 2:
                number += 1
                used = replace(VIEW.device_usage[0], counts=counts(140 + number))
                node.shown = replace(VIEW, device_usage=(used,))
                serving.changed()
                await asyncio.wait([connection.reading], timeout=0.02)
        return loop.time() - begin, heard

    took, heard = with_connection(bus, work)
    assert took > 2 * dbus.PUBLISH_EVERY_S
    assert [message.member for message in heard] == ["PropertiesChanged"] * 2


# ---- the bus comes and goes ----


def test_a_lost_bus_is_found_again(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    bus.stop()
    eventually(lambda: any("no message bus" in note for note in node.notes))
    assert node.notes[1] == "the message bus closed the connection"
    bus.start()
    eventually(lambda: node.notes[-1] == "")
    with NodeClient(bus.address) as client:
        assert len(client.devices()) == 2


def test_no_bus_at_all() -> None:
    node = FakeNode()
    with Serving(node, "unix:abstract=kubenpu-test-nothing"):
        eventually(lambda: len(node.notes) > 0)
    assert "no message bus" in node.notes[0]


def test_a_socket_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("kubenpu.exporters.dbus_connection.CONNECT_TIMEOUT_S", 0.1)
    node = FakeNode()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "bus"))
        silent.listen()
        with Serving(node, f"unix:path={tmp_path}/bus"):
            eventually(lambda: len(node.notes) > 0)
    assert "does not answer" in node.notes[0]


@pytest.mark.parametrize("said", [b"", b"REJECTED EXTERNAL\r\n", b"OK 00\r\n\x01\x02\x03" + bytes(40)])
def test_a_socket_that_is_no_bus(tmp_path: Path, said: bytes) -> None:
    import socket

    node = FakeNode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "bus"))
        listener.listen()
        with Serving(node, f"unix:path={tmp_path}/bus"):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(said)
            eventually(lambda: len(node.notes) > 0)
    assert node.notes[0]


def test_the_name_of_another_is_left_to_it(bus: PrivateBus, served: Serving) -> None:
    second = FakeNode()
    with Serving(second, bus.address):
        eventually(lambda: len(second.notes) > 0)
    assert "belongs to another process" in second.notes[0]


# ---- kubenpud itself ----


def test_kubenpud_on_the_bus(bus: PrivateBus, tmp_path: Path) -> None:
    """Without counters it still tells of its node; without a bus it still serves metrics."""
    url = free_url()
    (tmp_path / "sys").mkdir()
    config = tmp_path / "kubenpu.toml"
    config.write_text(
        f'run_directory = "{tmp_path}"\n[web]\nlisten_address = ["{url.split("/")[2]}"]\n'
        f'[dbus]\naddress = "{bus.address}"\n[kernel]\npin_directory = "{tmp_path}/pins"\n'
        f'[devices]\nsysfs = "{tmp_path}/sys"\n[identity]\ncri_sockets = ["{tmp_path}/none.sock"]\n'
    )
    command = [sys.executable, "-m", "kubenpu.service.daemon", "--config.file", str(config)]
    daemon = subprocess.Popen(command, cwd=ROOT)
    try:
        eventually(lambda: daemon.poll() is not None or scraped(url, 'kubenpu_source_up{source="dbus"} 1.0'))
        with NodeClient(bus.address) as client:
            assert client.node().hooks == {"drm_ioctl": "off"}
            assert not client.devices()
            assert not client.counters()
        assert bus.call("Reload").returncode == 0
        bus.stop()
        eventually(lambda: scraped(url, 'kubenpu_source_up{source="dbus"} 0.0'))
    finally:
        daemon.terminate()
        assert daemon.wait(DEADLINE_S) == 0


def scraped(url: str, line: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return line in answer.read().decode()
    except OSError:
        return False


def test_hook_off_shows_no_counts(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    node.shown = OFF
    with NodeClient(bus.address) as client:
        eventually(lambda: client.counters() == [])
        assert [device.counts for device in client.devices()] == [None, None]
        assert client.node().counting_since is None
