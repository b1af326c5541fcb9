# SPDX-License-Identifier: Apache-2.0
"""What floods, silence, slow readers and nonsense over Varlink do to kubenpud and to other clients."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.api.varlink import MAX_CALL_BYTES
from kubenpu.exporters import varlink
from tests.fakes.dbus_node import FakeNode, many
from tests.fakes.private_bus import NOBODY, eventually
from tests.fakes.varlink_peer import DEADLINE_S, Peer, VarlinkServing, encoded
from tests.integration.conftest import open_fds

PAGE = encoded("GetCounters")


@pytest.fixture
def node() -> FakeNode:
    return FakeNode(many(1000), source="varlink")


@pytest.fixture
def serving(node: FakeNode) -> Iterator[VarlinkServing]:
    """In a directory that every user reaches. No file descriptor of it is left."""
    fds = open_fds()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with VarlinkServing(node, Path(directory) / "socket") as served:
            eventually(lambda: node.notes == [""])
            yield served
    assert open_fds() <= fds


def deaf(serving: VarlinkServing, calls: bytes) -> Peer:
    """Asks and never reads."""
    peer = serving.peer()
    peer.socket.sendall(calls)
    return peer


def peer_of(user: int, serving: VarlinkServing) -> Peer:
    """The kernel remembers who connected, not who sends."""
    os.seteuid(user)
    try:
        return serving.peer()
    finally:
        os.seteuid(0)


def assert_served(serving: VarlinkServing) -> None:
    """Peer gives up after DEADLINE_S."""
    with serving.peer() as peer:
        assert peer.ask("GetInfo")["parameters"]["nodeName"] == "node-1"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"{\0",
        b"\0",
        b"hello\0",
        b"GET / HTTP/1.1\r\n\r\n\0",
        b"[]\0",
        b"\xff\xfe\0",
        b"x" * 70000,
        b"x" * 70000 + b"\0",
    ],
    ids=lambda data: str(data[:12]),
)
def test_nonsense_closes_the_connection_and_no_other(serving: VarlinkServing, nonsense: bytes) -> None:
    with serving.peer() as good, serving.peer() as bad:
        assert good.ask("GetInfo")["parameters"]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            bad.socket.sendall(nonsense)
        assert bad.is_closed()
        assert good.ask("GetInfo")["parameters"]


def test_the_longest_call_is_answered(serving: VarlinkServing) -> None:
    call = encoded("GetInfo")
    with serving.peer() as peer:
        peer.socket.sendall(b" " * (MAX_CALL_BYTES + 1 - len(call)) + call)
        assert peer.receive()["parameters"]["nodeName"] == "node-1"


def test_answers_before_nonsense_arrive(serving: VarlinkServing) -> None:
    with serving.peer() as peer:
        peer.socket.sendall(encoded("GetInfo") + b"nonsense\0")
        assert peer.receive()["parameters"]["nodeName"] == "node-1"
        assert peer.receive() is None


def test_slow_readers_give_way_to_who_waits(serving: VarlinkServing, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold all room for replies with deadlines that this test would not live to see."""
    monkeypatch.setattr(varlink, "TAKE_S", 1000.0)
    monkeypatch.setattr(varlink, "PATIENCE_S", 0.1)
    readers = [deaf(serving, PAGE * 10) for _ in range(3 * varlink.MAX_REPLIES)]
    eventually(serving.server._outlet.room.locked)
    assert_served(serving)
    eventually(lambda: serving.connection_count <= varlink.MAX_REPLIES)
    for reader in readers:
        reader.socket.close()


def test_a_slow_reader_alone_is_cut_off_too(serving: VarlinkServing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlink, "TAKE_S", 0.2)
    with deaf(serving, PAGE * 10) as peer:
        eventually(lambda: serving.connection_count == 1)
        eventually(lambda: serving.connection_count == 0)
        assert peer.is_closed()


def test_a_watcher_that_does_not_read_is_cut_off(
    serving: VarlinkServing, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlink, "TAKE_S", 0.2)
    node.shown = many(20000)
    with serving.peer() as reading:
        reading.send("Watch", {"filter": {"pod": "worker-00007"}}, more=True)
        assert len(reading.receive()["parameters"]["counters"]) == 1
        with deaf(serving, encoded("Watch", more=True)) as peer:
            eventually(lambda: serving.watcher_count == 2)
            eventually(lambda: serving.watcher_count == 1)
            assert peer.is_closed()
        assert reading.receive()["parameters"]["counters"] == []
    eventually(lambda: serving.watcher_count == 0)


def test_silence_has_an_end(serving: VarlinkServing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither nothing nor half a call keeps a place."""
    monkeypatch.setattr(varlink, "CALL_S", 0.2)
    with serving.peer() as silent, serving.peer() as half:
        half.socket.sendall(b'{"method":')
        assert silent.is_closed()
        assert half.is_closed()


def test_half_open_connections_hold_nobody_out(serving: VarlinkServing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who has all places loses his oldest to another user, and gets no more himself."""
    monkeypatch.setattr(varlink, "MAX_CONNECTIONS", 8)
    peers = [serving.peer() for _ in range(8)]
    eventually(lambda: serving.connection_count == 8)
    with serving.peer() as one_more:
        assert one_more.is_closed()
    with peer_of(NOBODY, serving) as other:
        assert other.ask("GetInfo")["parameters"]
    assert peers[0].is_closed()
    assert peers[1].ask("GetInfo")["parameters"]
    for peer in peers:
        peer.socket.close()


def test_a_flood_of_calls_leaves_others_their_turn(serving: VarlinkServing) -> None:
    """Ten connections that always have ten calls waiting: the eleventh waits for a turn of each, not for all calls."""
    stop = threading.Event()

    def flood() -> None:
        with serving.peer() as peer:
            while not stop.is_set():
                peer.socket.sendall(PAGE * 10)
                for _ in range(10):
                    assert len(peer.receive()["parameters"]["counters"]) == 500

    clients = [threading.Thread(target=flood) for _ in range(10)]
    for client in clients:
        client.start()
    try:
        eventually(serving.server._outlet.room.locked)
        for _ in range(5):
            assert_served(serving)
    finally:
        stop.set()
        for client in clients:
            client.join(DEADLINE_S)
