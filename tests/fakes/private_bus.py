# SPDX-License-Identifier: Apache-2.0
"""A dbus-daemon of a test's own, on an abstract socket: any user of this machine reaches it, and nothing of it stays.

Users other than root are tried by starting busctl as one. Needs root and the packages dbus-daemon and systemd.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from kubenpu.exporters.dbus import DbusServer, Session
from kubenpu.exporters.dbus_connection import Connection, connected
from kubenpu.exporters.dbus_next_parts import Message, MessageFlag
from kubenpu.exporters.dbus_rights import POLKIT
from kubenpu.exporters.picture import Pictures
from tests.fakes.bus_config import POLICY, bus_command
from tests.fakes.dbus_node import FakeNode
from tests.fakes.serving import ServingThread
from tests.fakes.sim_tally import wait_until

NOBODY = 65534
DEADLINE_S = 30.0

R = TypeVar("R")


class PrivateBus:
    """Started with the block; may be stopped, frozen and started again in it, at the same address."""

    def __init__(self, directory: Path, name: str, policy: Path = POLICY) -> None:
        self.address = f"unix:abstract=kubenpu-test-{name}"
        self._command = bus_command(directory / "bus.conf", self.address, policy)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith(self.address)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def freeze(self, frozen: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def busctl(self, *words: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        command = ["busctl", f"--address={self.address}", *words]
        return subprocess.run(
            command, user=user, capture_output=True, text=True, check=False, timeout=DEADLINE_S, cwd="/"
        )

    def call(self, member: str, *words: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        """A method of io.kubenpu.Node1."""
        return self.busctl("call", "io.kubenpu", "/io/kubenpu", "io.kubenpu.Node1", member, *words, user=user)


class Serving(ServingThread[DbusServer]):
    """A DbusServer on the bus at `address`."""

    def __init__(self, node: FakeNode, address: str) -> None:
        super().__init__()
        self.node = node
        self._address = address

    def make_server(self) -> DbusServer:
        return DbusServer(self.node, Pictures(self.node), self._address, self.node.reload, self.node.usage)

    @property
    def sessions(self) -> list[Session]:
        """Those that live now."""
        found = [each for each in gc.get_objects() if type(each) is Session]
        return [each for each in found if not each.connection.reading.done()]

    def changed(self) -> None:
        self.loop.call_soon_threadsafe(self.server.changed)

    def do(self, work: Coroutine[Any, Any, R]) -> R:
        """Something beside the server, in its loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)


async def with_polkit(address: str, answer: Callable[[Any], Any], work: Callable[[], R]) -> tuple[R, list[Any]]:
    """Runs `work` in a thread while `answer` replies to what polkit is asked, None never; what it was asked, too."""
    asked: list[Any] = []
    async with connected(address, 65536) as connection:

        def on_call(call: Any) -> None:
            asked.append(call)
            reply = answer(call)
            if reply is not None:
                connection.offer(connection.encode(reply))

        connection.on_call = on_call
        assert await connection.ask_bus("RequestName", "su", POLKIT, 4) == [1]
        return await asyncio.get_running_loop().run_in_executor(None, work), asked


async def subscribe(connection: Connection) -> list[Any]:
    """Everything that io.kubenpu says from now on, as it comes in."""
    heard: list[Any] = []
    connection.on_signal = lambda message: heard.append(message) if message.path.startswith("/io/kubenpu") else None
    await connection.ask_bus("AddMatch", "s", "type='signal',path_namespace='/io/kubenpu'")
    return heard


def method(
    member: str, signature: str = "", body: list[Any] | None = None, flags: MessageFlag = MessageFlag.NONE
) -> Any:
    """A call of io.kubenpu.Node1."""
    return Message(
        "io.kubenpu", "/io/kubenpu", "io.kubenpu.Node1", member, flags=flags, signature=signature, body=body or []
    )


def eventually(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, DEADLINE_S)


def with_connection(bus: PrivateBus, work: Callable[[Connection], Any]) -> Any:
    async def main() -> Any:
        async with connected(bus.address, 64 << 20) as connection:
            return await work(connection)

    return asyncio.run(main())
