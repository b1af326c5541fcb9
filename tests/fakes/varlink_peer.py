# SPDX-License-Identifier: Apache-2.0
"""Both ends of a Varlink socket for tests: a VarlinkServer in a thread, and a client that speaks bytes.

The client takes nothing from the library that the server uses: it frames and parses by itself. What it gets can be
checked against the interface definition.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any, Self

from varlink import scanner

from kubenpu.api.varlink import render_idl
from kubenpu.exporters.picture import Pictures
from kubenpu.exporters.varlink import VarlinkServer, open_listeners
from tests.fakes.dbus_node import FakeNode
from tests.fakes.serving import ServingThread

DEADLINE_S = 30.0
NODE = "io.kubenpu.Node"
PARSED = scanner.Interface(render_idl())


class Peer:
    """A client. Every wait has a deadline."""

    def __init__(self, path: Path | str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(path))
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, method: str, parameters: object = None, **flags: object) -> None:
        self.socket.sendall(encoded(method, parameters, **flags))

    def receive(self) -> Any:
        """The next reply; None when the server has closed the connection."""
        while b"\0" not in self._unread:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                assert not self._unread, "a reply was cut short"
                return None
            self._unread += data
        reply, _, self._unread = self._unread.partition(b"\0")
        return json.loads(reply)

    def ask(self, method: str, parameters: object = None, **flags: object) -> Any:
        self.send(method, parameters, **flags)
        return self.receive()

    def is_closed(self) -> bool:
        """Waits until the server has closed the connection, whatever it sent before."""
        end = time.monotonic() + DEADLINE_S
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                if time.monotonic() > end:
                    return False
        return True


def encoded(method: str, parameters: object = None, **flags: object) -> bytes:
    """A call; without parameters it has no such key. A name without a dot is one of io.kubenpu.Node."""
    message: dict[str, object] = {"method": method if "." in method else f"{NODE}.{method}", **flags}
    if parameters is not None:
        message["parameters"] = parameters
    return json.dumps(message).encode() + b"\0"


class VarlinkServing(ServingThread[VarlinkServer]):
    """A VarlinkServer on a socket at `path`."""

    def __init__(self, node: FakeNode, path: Path) -> None:
        super().__init__()
        self.path = path
        self._node = node

    def make_server(self) -> VarlinkServer:
        return VarlinkServer(self._node, Pictures(self._node), open_listeners(f"unix:{self.path}"))

    @property
    def connection_count(self) -> int:
        return len(self.server._connections)

    @property
    def watcher_count(self) -> int:
        return self.server._answers.changes._watching

    def peer(self) -> Peer:
        return Peer(self.path)


def check(member: str, value: object) -> None:
    """Fails unless the value is exactly what the definition, as the library reads it, gives a method or an error."""
    found = PARSED.members[member]
    _check(found.out_type if isinstance(found, scanner._Method) else found.type, value)


def _check(kind: Any, value: Any) -> None:
    """Fails unless the value is exactly of the type as the library read it from the definition."""
    match kind:
        case scanner._Maybe():
            assert value is not None, "what is absent is left out"
            _check(kind.element_type, value)
        case scanner._Array():
            for each in value:
                _check(kind.element_type, each)
        case scanner._Dict():
            for key, each in value.items():
                assert type(key) is str
                _check(kind.element_type, each)
        case scanner._CustomType():
            _check(PARSED.members[kind.name].type, value)
        case scanner._Struct():
            assert value.keys() <= kind.fields.keys()
            for key, of in kind.fields.items():
                assert key in value or isinstance(of, scanner._Maybe), f"{key} is missing"
                if key in value:
                    _check(of, value[key])
        case _:
            assert type(value) is type(kind)
