# SPDX-License-Identifier: Apache-2.0
"""Varlink as systemd's own client sees it, asked by an unprivileged user; and a distribution without the library."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.vm.guest import service, tally, wait
from tests.vm.guest.bus import NOBODY
from tests.vm.guest.drm import DrmDevice

pytestmark = pytest.mark.usefixtures("counting")

SOCKET = Path("/run/kubenpu/io.kubenpu.Node")
SOCKET_UNIT = "kubenpud-varlink.socket"
NODE = "io.kubenpu.Node"
without_library = pytest.mark.guests("bookworm")
with_library = pytest.mark.guests("trixie", "trixie73")


def varlinkctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NOBODY, "varlinkctl", *words], capture_output=True, text=True, check=False, timeout=60)


def call(method: str, parameters: str = "{}") -> Any:
    done = varlinkctl("-j", "call", str(SOCKET), f"{NODE}.{method}", parameters)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@without_library
def test_without_the_library_kubenpud_says_so_once_and_goes_on() -> None:
    assert service.value("kubenpu_source_up", source="varlink") == 0
    assert service.value("kubenpu_source_up", source="devices") == 1
    assert not SOCKET.exists()
    command = ["journalctl", "-q", "--no-pager", "-o", "cat", f"_PID={service.main_pid()}"]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert log.count("the library python3-varlink is missing") == 1


@with_library
def test_introspection() -> None:
    """systemd parses the definition, and finds no fault with it."""
    done = varlinkctl("introspect", str(SOCKET), NODE)
    assert done.returncode == 0, done.stderr
    for member in ("type Counter", "method Watch", "method GetCounters", "error TooManyWorkloads"):
        assert member in done.stdout
    assert varlinkctl("list-interfaces", str(SOCKET)).stdout.split() == [NODE, "org.varlink.service"]
    assert "Vendor: KubeNPU" in varlinkctl("info", str(SOCKET)).stdout
    plain = subprocess.run(
        ["varlinkctl", "validate-idl"], input=done.stdout, capture_output=True, text=True, check=False
    )
    assert plain.returncode == 0, plain.stderr


@with_library
def test_calls(virtio: DrmDevice) -> None:
    done = tally.run("--node", virtio.render, "--do", "getparam:20")
    assert call("GetInfo")["hooks"] == {"drm_ioctl": service.BEST_MECHANISM}
    (device,) = [each for each in call("ListDevices")["devices"] if each["address"] == virtio.address]
    assert device["counters"]["calls"]["other"] >= done.total
    wanted = {"filter": {"device": virtio.address, "kind": "host"}, "limit": 500}
    page = call("GetCounters", json.dumps(wanted))
    assert page["total"] == len(page["counters"]) > 0
    assert sum(row["calls"]["other"] for row in page["counters"]) >= done.total
    assert call("ListWorkloads")["workloads"]
    refused = varlinkctl("call", str(SOCKET), f"{NODE}.GetCounters", '{"limit":-1}')
    assert refused.returncode != 0
    assert "InvalidParameter" in refused.stderr
    refused = varlinkctl("call", str(SOCKET), f"{NODE}.Watch", "{}")
    assert "ExpectedMore" in refused.stderr


@with_library
def test_watch_brings_what_changes(virtio: DrmDevice) -> None:
    with watching() as said:
        wait.until("everything", lambda: len(replies(said)) > 0)
        assert replies(said)[0]["counters"]
        before = len(replies(said))
        done = tally.run("--node", virtio.render, "--do", "getparam:30")
        changed = wait.until("the change", lambda: rows_of(replies(said)[before:], virtio.address))
        assert changed[-1]["calls"]["other"] >= done.total
        wait.until("a reply without rows", lambda: any(not reply["counters"] for reply in replies(said)))
    assert service.value("kubenpu_source_up", source="varlink") == 1


@contextmanager
def watching() -> Iterator[Path]:
    """A file to which varlinkctl writes one reply per line."""
    output = Path("/tmp/watch.json")
    command = [*NOBODY, "varlinkctl", "-j", "--more", "call", str(SOCKET), f"{NODE}.Watch", "{}"]
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file)
        try:
            yield output
        finally:
            process.terminate()
            process.wait(30)
            output.unlink()


def replies(said: Path) -> list[Any]:
    """The whole ones; with -j they are separated by record separators or newlines only."""
    lines = said.read_text().replace("\x1e", "").rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in lines if line]


def rows_of(found: list[Any], device: str) -> list[Any]:
    return [row for reply in found for row in reply["counters"] if row["device"] == device]


@with_library
def test_systemd_holds_the_socket() -> None:
    """A call starts kubenpud; while it restarts nobody is refused."""
    service.systemctl("stop", service.DAEMON)
    assert not SOCKET.exists()
    service.systemctl("start", SOCKET_UNIT)
    try:
        assert call("GetInfo")["nodeName"] == os.uname().nodename
        before = service.main_pid()
        service.systemctl("restart", service.DAEMON)
        assert call("ListDevices")["devices"]
        assert service.main_pid() not in (0, before)
        assert SOCKET.exists()
    finally:
        service.systemctl("stop", SOCKET_UNIT)
        service.systemctl("restart", service.DAEMON)
    assert not call("GetCounters", '{"filter":{"pod":"none"}}')["counters"]
