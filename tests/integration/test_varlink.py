# SPDX-License-Identifier: Apache-2.0
"""Varlink over a real socket: the library's client, many clients, and kubenpud itself with and without systemd."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from varlink.client import Client
from varlink.error import InvalidParameter, VarlinkError

from tests.fakes.dbus_node import VIEW, FakeNode, many
from tests.fakes.kubenpud import kubenpud, write_settings
from tests.fakes.private_bus import eventually
from tests.fakes.varlink_peer import DEADLINE_S, NODE, Peer, VarlinkServing, check, encoded
from tests.integration.conftest import open_fds


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(source="varlink")


@pytest.fixture
def serving(node: FakeNode, tmp_path: Path) -> Iterator[VarlinkServing]:
    """No thread, file descriptor or socket file of it is left."""
    fds, threads = open_fds(), set(threading.enumerate())
    with VarlinkServing(node, tmp_path / NODE) as served:
        eventually(lambda: node.notes == [""])
        yield served
    assert not (tmp_path / NODE).exists()
    assert set(threading.enumerate()) <= threads
    assert open_fds() <= fds


def test_the_clients_of_the_library(serving: VarlinkServing) -> None:
    with Client(address=f"unix:{serving.path}") as client, client.open(NODE) as remote:
        assert remote.GetInfo()["nodeName"] == "node-1"
        assert [device["address"] for device in remote.ListDevices()["devices"]] == [d.address for d in VIEW.devices]
        assert remote.GetCounters(filter={"unit": "ssh.service"})["total"] == 1
        with pytest.raises(InvalidParameter):
            remote.GetCounters(limit=-1)
        with pytest.raises(VarlinkError, match="ExpectedMore"):
            remote.Watch()
        stream = remote.Watch(_more=True)
        assert len(next(stream)["counters"]) == len(VIEW.usage)
        assert next(stream)["counters"] == []
    eventually(lambda: serving.watcher_count == 0)


def test_fifty_list_at_once(serving: VarlinkServing, node: FakeNode) -> None:
    node.shown = many(2000)
    rows: list[int] = []

    def list_all() -> None:
        with serving.peer() as peer:
            for page in range(4):
                found = peer.ask("GetCounters", {"offset": 500 * page})["parameters"]
                rows.append(len(found["counters"]))

    clients = [threading.Thread(target=list_all) for _ in range(50)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(DEADLINE_S)
    assert rows == [500] * 200
    eventually(lambda: serving.connection_count == 0)
    assert node.view_count < 50, "every client has read its own View"


def test_calls_are_answered_in_order_however_they_arrive(serving: VarlinkServing) -> None:
    calls = [encoded("GetCounters", {"offset": n, "limit": 1}) for n in range(4)]
    with serving.peer() as peer:
        peer.socket.sendall(b"".join([calls[0], encoded("GetInfo", oneway=True), *calls[1:]]))
        devices = [peer.receive()["parameters"]["counters"][0]["device"] for _ in calls]
        assert devices == [usage.device for usage in VIEW.usage]
        for byte in encoded("GetInfo"):
            peer.socket.sendall(bytes([byte]))
        check("GetInfo", peer.receive()["parameters"])
        peer.socket.sendall(calls[0])
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.receive()["parameters"]["total"] == len(VIEW.usage)
        assert peer.receive() is None


def test_a_call_after_watch_waits_for_its_end(serving: VarlinkServing, node: FakeNode) -> None:
    """Watch has none but the other side's: what is sent meanwhile is not read, and no reason to spin."""
    with serving.peer() as peer:
        peer.send("Watch", more=True)
        assert peer.receive()["continues"] is True
        peer.send("GetInfo")
        assert peer.receive()["parameters"]["counters"] == []
        assert peer.receive()["parameters"]["counters"] == []
    eventually(lambda: serving.connection_count == 0)
    assert node.view_count < 20


def test_anybody_may_connect(serving: VarlinkServing) -> None:
    assert stat.filemode(serving.path.stat().st_mode) == "srw-rw-rw-"


# ---- kubenpud ----


def test_kubenpud_serves_replaces_a_stale_socket_and_stops_under_a_watch(tmp_path: Path) -> None:
    file = write_settings(tmp_path, 'web.listen_address = ["127.0.0.1:0"]\ndbus.address = ""\n')
    path = tmp_path / "varlink"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with kubenpud(file) as daemon:
        daemon.wait_said("READY=1")
        with Peer(path) as peer:
            devices = peer.ask("ListDevices")["parameters"]
            check("ListDevices", devices)
            assert devices["devices"]
            peer.send("Watch", {"intervalSeconds": 3600}, more=True)
            check("Watch", peer.receive()["parameters"])
            daemon.process.terminate()
            assert daemon.process.wait(10) == 0
            assert peer.receive() is None
    assert not path.exists()


def test_sockets_of_both_names_come_together(tmp_path: Path) -> None:
    """As kubenpud-metrics.socket and kubenpud-varlink.socket pass them; systemd's files stay."""
    path = tmp_path / NODE
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        file = write_settings(tmp_path, 'dbus.address = ""\nvarlink.address = "unix:/nonexistent/varlink"\n')
        with kubenpud(file, (tcp, unix), "metrics:varlink") as daemon:
            daemon.wait_said("READY=1")
            daemon.wait_logged(f"serves 127.0.0.1:{tcp.getsockname()[1]}: ")
            with Peer(path) as peer:
                check("GetInfo", peer.ask("GetInfo")["parameters"])
    assert path.exists()


@pytest.mark.parametrize("names", ["metrics:varlink", "varlink:metrics"])
def test_a_passed_socket_of_another_family_is_refused(tmp_path: Path, names: str) -> None:
    """Varlink asks nobody who he is: it is not for the network."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        file = write_settings(tmp_path, 'dbus.address = ""\n')
        with kubenpud(file, (one, other), names) as daemon:
            daemon.wait_said("READY=1")
            daemon.wait_logged("is of another family than AF_UNIX")
