# SPDX-License-Identifier: Apache-2.0
"""io.kubenpu on real system buses: who may do what, with and without polkit, and who is started by a call. R21.

bookworm has dbus-daemon and no polkit, trixie dbus-broker and polkit, trixie73 dbus-daemon and polkit.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.vm.guest import bus, service, tally, wait
from tests.vm.guest.bus import NOBODY
from tests.vm.guest.drm import DrmDevice

pytestmark = pytest.mark.usefixtures("counting")

BUS = {"trixie": "dbus-broker"}.get(os.environ.get("KUBENPU_VM_GUEST", ""), "dbus-daemon")
POLKIT = "org.freedesktop.PolicyKit1"
POLKITD = Path("/usr/lib/polkit-1/polkitd")
RULES = Path("/etc/polkit-1/rules.d/60-kubenpu.rules")
RULE = """\
polkit.addRule(function(action, subject) {
    if (action.id == "io.kubenpu.reload" && subject.isInGroup("nogroup"))
        return polkit.Result.YES;
});
"""
SOMEBODY = bus.user(1)
DENIED = "Call failed: Access denied\n"  # busctl's words for org.freedesktop.DBus.Error.AccessDenied
with_polkit = pytest.mark.guests("trixie", "trixie73")
broker = pytest.mark.guests("trixie")
both_buses = pytest.mark.guests("bookworm", "trixie")
# Subscribes and reads no more. For each line it is told it asks 16 times for 3 KiB, and says when that is sent.
DEAF = """\
import asyncio, sys
from kubenpu.exporters.dbus_connection import connected
from kubenpu.exporters.dbus_next_parts import Message

async def main():
    async with connected("unix:path=/run/dbus/system_bus_socket", 65536) as connection:
        await connection.ask_bus("AddMatch", "s", "type='signal',sender='io.kubenpu'")
        connection._writer.transport.pause_reading()
        while sys.stdin.readline():
            for _ in range(16):
                ask = Message("io.kubenpu", "/io/kubenpu", "org.freedesktop.DBus.Introspectable", "Introspect")
                await connection.send(connection.encode(ask))
            print("sent", flush=True)

asyncio.run(main())
"""


def test_the_guest_has_what_it_is_to_have() -> None:
    """Else the cases below would try another bus than they say. It does not complain of our policy."""
    program = Path(f"/proc/{service.show('dbus.service', 'MainPID')}/exe").resolve()
    assert program.name.removesuffix("-launch") == BUS
    names = bus.busctl("list", "--activatable", "--no-legend").stdout
    assert (POLKIT in names) == (os.environ["KUBENPU_VM_GUEST"] != "bookworm")
    assert "io.kubenpu.conf" not in journal("-u", "dbus", "-u", "dbus-broker")


def test_everybody_reads(virtio: DrmDevice) -> None:
    done = tally.run("--node", virtio.render, "--do", "getparam:20")
    paths = bus.busctl("tree", "--list", "io.kubenpu", by=NOBODY).stdout.split()
    assert paths[:4] == ["/", "/io", "/io/kubenpu", "/io/kubenpu/device"]
    assert len(paths) == 6
    shown = bus.busctl("introspect", *bus.OBJECT, by=NOBODY).stdout
    assert ".GetCounters " in shown
    assert f'"{os.uname().nodename}"' in shown
    (device,) = [each for each in bus.read("ListDevices", by=NOBODY)[0] if each["Address"]["data"] == virtio.address]
    assert device["Counters"]["data"]["Calls"]["data"]["other"] >= done.total
    words = ("a{sv}uu", "1", "Device", "s", virtio.address, "0", "0")
    rows, total = bus.read("GetCounters", *words, by=NOBODY)
    assert len(rows) == total > 0
    assert bus.read("ListWorkloads", by=NOBODY)[0]
    assert "cannot be set" in bus.busctl("set-property", *bus.OBJECT, bus.NODE, "Version", "s", "9", by=NOBODY).stderr
    desktop = "org.freedesktop.DBus"
    own = ("call", desktop, "/org/freedesktop/DBus", desktop, "RequestName", "su", "io.kubenpu", "0")
    assert bus.busctl(*own, by=NOBODY).stderr == DENIED


def test_reload_is_roots() -> None:
    """Nobody has allowed it to anybody else: there is no polkit, or it wants a password that nobody gives."""
    before = reloads()
    assert bus.call("Reload").returncode == 0
    wait.until("the reload", lambda: reloads() == before + 1)
    assert_refused(NOBODY)
    assert reloads() == before + 1


@with_polkit
def test_polkit_knows_the_action() -> None:
    done = subprocess.run(
        ["pkaction", "--action-id", "io.kubenpu.reload", "--verbose"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for words in ("Reload KubeNPU", "implicit any: auth_admin", "implicit active: auth_admin_keep"):
        assert words in " ".join(done.stdout.split())
    assert "io.kubenpu.policy" not in journal("-u", "polkit")


@with_polkit
def test_a_rule_of_polkit_lets_a_group_reload() -> None:
    before = reloads()
    with rule():
        wait.until("polkit to read the rule", lambda: bus.call("Reload", by=NOBODY).returncode == 0)
        wait.until("the reload", lambda: reloads() == before + 1)
        assert_refused(SOMEBODY)
    wait.until("polkit to forget the rule", lambda: bus.call("Reload", by=NOBODY).returncode != 0)


@broker
def test_a_polkit_that_cannot_be_started_allows_nothing() -> None:
    """Whatever its rules said."""
    with rule():
        service.systemctl("stop", "polkit.service")
        hidden = POLKITD.rename(POLKITD.with_name("hidden"))
        try:
            assert_refused(NOBODY)
            assert bus.call("Reload").returncode == 0
        finally:
            hidden.rename(POLKITD)


@contextmanager
def rule() -> Iterator[None]:
    RULES.write_text(RULE)
    try:
        yield
    finally:
        RULES.unlink()


def assert_refused(by: bus.By) -> None:
    assert bus.call("Reload", by=by).stderr == DENIED


def reloads() -> int:
    """How often the running kubenpud has read its settings again."""
    return journal(f"_PID={service.main_pid()}").count("reload: ")


def journal(*of: str) -> str:
    command = ["journalctl", "-q", "-b", "-o", "cat", *of]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@both_buses
def test_a_call_starts_kubenpud() -> None:
    service.systemctl("stop", service.DAEMON)
    assert service.main_pid() == 0
    assert bus.version(by=NOBODY).returncode == 0
    assert service.main_pid() != 0
    wait.until("both devices", lambda: len(service.devices()) == 2)


@broker
def test_a_subscriber_that_never_reads_harms_nobody(virtio: DrmDevice) -> None:
    """It is sent more than a socket takes (208 KiB); all are answered meanwhile, and told what changes."""
    command = [*NOBODY, "python3", "-c", DEAF]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as deaf,
        monitor() as heard,
    ):
        assert deaf.stdin is not None
        assert deaf.stdout is not None
        for _ in range(6):
            print(file=deaf.stdin, flush=True)
            assert deaf.stdout.readline() == "sent\n"
            assert len(bus.read("ListDevices", by=SOMEBODY)[0]) == 2
        tally.run("--node", virtio.render, "--do", "getparam:1")
        wait.until("the change", lambda: '"PropertiesChanged"' in heard.read_text())
        deaf.stdin.close()
    assert service.value("kubenpu_source_up", source="dbus") == 1


@contextmanager
def monitor() -> Iterator[Path]:
    """What somebody who reads hears of kubenpud, as it comes in."""
    output = Path("/tmp/heard.json")
    with output.open("wb") as file:
        process = subprocess.Popen(["busctl", "--json=short", "monitor", "io.kubenpu"], stdout=file)
        try:
            yield output
        finally:
            process.terminate()
            process.wait(30)
            output.unlink()
