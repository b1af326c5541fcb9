# SPDX-License-Identifier: Apache-2.0
"""Who may do what over D-Bus: everybody, root, others with and without polkit. Needs root to try it as another user."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubenpu.api import dbus as api
from kubenpu.exporters import dbus_rights
from kubenpu.exporters.dbus_client import NodeClient
from kubenpu.exporters.dbus_connection import CallError, Connection, from_wire
from kubenpu.exporters.dbus_next_parts import Message, MessageFlag
from kubenpu.model.errors import SourceError
from tests.fakes.dbus_node import FakeNode
from tests.fakes.private_bus import (
    DEADLINE_S,
    NOBODY,
    PrivateBus,
    Serving,
    method,
    with_connection,
    with_polkit,
)
from tests.fakes.sim_tally import wait_until

DENIED = "Call failed: Access denied\n"  # busctl's words for org.freedesktop.DBus.Error.AccessDenied
ROOT = Path(__file__).parents[2]


def test_everybody_reads(bus: PrivateBus, served: Serving) -> None:
    for member in ("ListDevices", "ListWorkloads"):
        assert bus.call(member, user=NOBODY).returncode == 0
    assert bus.call("GetCounters", "a{sv}uu", "0", "0", "0", user=NOBODY).returncode == 0
    assert '"node-1"' in bus.busctl("introspect", api.NAME, api.PATH, user=NOBODY).stdout
    refused = bus.busctl("set-property", api.NAME, api.PATH, api.NODE.name, "Version", "s", "9", user=NOBODY)
    assert "cannot be set" in refused.stderr


def test_root_reloads_without_polkit(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    assert bus.call("Reload").returncode == 0
    assert bus.call("Reload", "s", "x").returncode != 0
    assert node.reloads == 1


def test_reload_needs_no_reply(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    async def work(connection: Connection) -> None:
        await connection.send(connection.encode(method("Reload", flags=MessageFlag.NO_REPLY_EXPECTED)))
        while not node.reloads:
            await asyncio.wait([connection.reading], timeout=0.01)

    with_connection(bus, work)


def test_reload_says_what_went_wrong(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    node.trouble = "cannot read\nsysfs"

    async def work(connection: Connection) -> None:
        with pytest.raises(CallError, match=r"cannot read\\nsysfs") as caught:
            await connection.call(method("Reload"))
        assert caught.value.name == api.FAILED

    with_connection(bus, work)


def test_without_polkit_the_answer_is_no(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    assert bus.call("Reload", user=NOBODY).stderr == DENIED
    assert node.reloads == 0


def yes(call: Any) -> Any:
    return Message.new_method_return(call, "(bba{ss})", [[True, False, {}]])


REFUSALS: dict[str, Callable[[Any], Any]] = {
    "no": lambda call: Message.new_method_return(call, "(bba{ss})", [[False, False, {}]]),
    "perhaps": lambda call: Message.new_method_return(call, "(bba{ss})", [[False, True, {}]]),
    "nothing": Message.new_method_return,
    "another form": lambda call: Message.new_method_return(call, "b", [True]),
    "a number": lambda call: Message.new_method_return(call, "(uba{ss})", [[1, False, {}]]),
    "an error": lambda call: Message.new_error(call, f"{dbus_rights.POLKIT}.Error.Failed", "broken"),
    "silence": lambda _call: None,
}


def test_polkit_decides_for_others(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    done, asked = served.do(with_polkit(bus.address, yes, lambda: bus.call("Reload", user=NOBODY)))
    assert (done.returncode, node.reloads) == (0, 1)
    ((subject, details), action, _, _, _) = from_wire(asked[0].body)
    assert (subject, action) == ("system-bus-name", "io.kubenpu.reload")
    assert details["name"].startswith(":1.")


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_anything_but_yes_is_no(
    bus: PrivateBus,
    served: Serving,
    node: FakeNode,
    answer: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dbus_rights, "POLKIT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(dbus_rights, "PERSON_TIMEOUT_S", 0.3)
    refused, asked = served.do(with_polkit(bus.address, answer, lambda: bus.call("Reload", user=NOBODY)))
    assert len(asked) == 1
    assert refused.stderr == DENIED
    assert node.reloads == 0


def test_a_decision_keeps_nobody_waiting(bus: PrivateBus, served: Serving) -> None:
    decide = threading.Event()

    def work() -> int:
        waiting = subprocess.Popen(
            ["busctl", f"--address={bus.address}", "call", api.NAME, api.PATH, api.NODE.name, "Reload"],
            user=NOBODY,
            cwd="/",
        )
        with NodeClient(bus.address) as client:
            assert wait_until(decide.is_set, DEADLINE_S)
            assert len(client.devices()) == 2
        waiting.kill()
        return waiting.wait()

    served.do(with_polkit(bus.address, lambda _call: decide.set(), work))


def test_others_cannot_take_the_name(bus: PrivateBus) -> None:
    words = ("call", api.DESKTOP, "/org/freedesktop/DBus", api.DESKTOP, "RequestName", "su", api.NAME, "0")
    assert bus.busctl(*words, user=NOBODY).stderr == DENIED
    assert bus.busctl(*words).returncode == 0


def test_client_does_not_believe_another_user(tmp_path: Path) -> None:
    policy = tmp_path / "open.conf"
    policy.write_text('<busconfig><policy context="default"><allow own="*"/></policy></busconfig>')
    script = (
        "import asyncio, os, sys\n"
        "from kubenpu.exporters.dbus_connection import connected\n"
        "os.setuid(65534)\n"
        "async def main():\n"
        "    async with connected(sys.argv[1], 65536) as bus:\n"
        "        await bus.ask_bus('RequestName', 'su', 'io.kubenpu', 4)\n"
        "        print('owned', flush=True)\n"
        "        await bus.reading\n"
        "asyncio.run(main())\n"
    )
    with PrivateBus(tmp_path, f"{os.getpid()}-open", policy) as bus:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", script, bus.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as impostor:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == "owned\n"
            with NodeClient(bus.address) as client, pytest.raises(SourceError, match="belongs to user 65534"):
                client.node()
            impostor.kill()
