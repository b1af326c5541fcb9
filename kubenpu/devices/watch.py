# SPDX-License-Identifier: Apache-2.0
"""Says when the set of accelerators changed, from the kernel's uevents over netlink.

Owns one netlink socket from construction to close(). Tells only that something changed, never what: the answer to
every change is another discover(), which cannot go wrong about order or lost events. Does not wait for udev, whose
events come later and not at all in a container.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterable
from typing import Any

from kubenpu.devices.discovery import is_node
from kubenpu.devices.schema import SUBSYSTEMS
from kubenpu.model.errors import SourceError

# `change` is not among them: a monitor that was plugged in, or a device that hung, is the same device.
_ACTIONS = frozenset(("add", "remove", "bind", "unbind", "move"))
_REMEDY = "Install pyudev and libudev and allow AF_NETLINK sockets; until then only the periodic scan finds devices"
_MAX_EVENTS = 4096
_MAX_FAILURES = 16


class DeviceWatch:
    """For asyncio: add_reader(watch.fileno(), ...), and there drain(). Remove the reader before close().

    `subsystems`: what to follow besides drm and accel; see chardevs.event_subsystems().
    """

    def __init__(self, subsystems: Iterable[str] = ()) -> None:
        self._more = frozenset(subsystems)
        # pyudev has no types; ctypes finds libudev only when a Context is made. Both are optional at run time.
        try:
            pyudev = importlib.import_module("pyudev")
            context = pyudev.Context()
            self._monitor: Any = pyudev.Monitor.from_netlink(context, source="kernel")
            for subsystem in (*SUBSYSTEMS, *sorted(self._more - {*SUBSYSTEMS})):
                self._monitor.filter_by(subsystem)
            self._monitor.start()
            self._socket = socket.socket(fileno=os.dup(self._monitor.fileno()))
        except (ImportError, OSError, ValueError) as error:
            raise SourceError(f"No device events: {error}", _REMEDY) from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> bool:
        """Take the events that wait; True when devices came, went or may have. Never blocks.

        SourceError when the socket gives nothing but errors: stop watching and scan periodically.
        """
        changed = False
        failures = 0
        for _ in range(_MAX_EVENTS):
            try:
                event = self._monitor.poll(0)
            except (OSError, ValueError) as error:
                # Events were lost (ENOBUFS) or one was malformed. pyudev does not read while an error is pending on
                # the socket, so it is taken here.
                failures += 1
                if failures > _MAX_FAILURES:
                    raise SourceError(f"Device events ended: {error}", "The periodic scan goes on") from error
                self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                changed = True
                continue
            if event is None:
                break
            changed = changed or self._is_relevant(event)
        return changed

    def _is_relevant(self, event: Any) -> bool:
        more = event.subsystem in self._more
        return event.action in _ACTIONS and (more or is_node(event.subsystem, event.sys_name))

    def close(self) -> None:
        """Give the socket back. Harmless when called twice."""
        self._socket.close()
        self._monitor = None  # libudev closes its descriptor with the last reference
