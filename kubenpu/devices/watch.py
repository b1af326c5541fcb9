# SPDX-License-Identifier: Apache-2.0
"""Says when the set of accelerators changed, from the kernel's uevents over netlink.

Owns one netlink socket from construction to close(). Tells only that something changed, never what: the answer to
every change is another discover(), which cannot go wrong about order or lost events. Does not wait for udev, whose
events come later and not at all in a container. Without a library: pyudev costs 1 MiB and starts ldconfig to find
libudev. The format is Documentation/ABI/testing/sysfs-uevent of the kernel: ACTION@DEVPATH, then KEY=VALUE, with NULs.
"""

from __future__ import annotations

import errno
import os
import socket

from kubenpu.devices.discovery import is_node
from kubenpu.devices.schema import SUBSYSTEMS
from kubenpu.model.errors import SourceError

# `change` is not among them: a monitor that was plugged in, or a device that hung, is the same device.
_ACTIONS = frozenset(("add", "remove", "bind", "unbind", "move"))
_REMEDY = "Allow AF_NETLINK sockets; until then only the periodic scan finds devices"
_KOBJECT_UEVENT = 15  # NETLINK_KOBJECT_UEVENT
_FROM_KERNEL = 1  # its multicast group of the kernel's events; udev's are in group 2
_EVENT_BYTES = 8192  # the kernel's buffer has 2048
_MAX_EVENTS = 4096
_MAX_FAILURES = 16


def open_uevents() -> socket.socket:
    """A socket that gives every uevent of the kernel, without blocking. Raises OSError."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    opened = socket.socket(socket.AF_NETLINK, kind, _KOBJECT_UEVENT)
    try:
        opened.bind((0, _FROM_KERNEL))
    except OSError:
        opened.close()
        raise
    return opened


class DeviceWatch:
    """For asyncio: add_reader(watch.fileno(), ...), and there drain(). Remove the reader before close().

    `subsystems`: what to follow besides drm and accel; see chardevs.event_subsystems().
    """

    def __init__(self, subsystems: frozenset[str] = frozenset()) -> None:
        self._more = subsystems
        try:
            self._socket = open_uevents()
        except OSError as error:
            raise SourceError(f"No device events: {error}", _REMEDY) from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def follow(self, subsystems: frozenset[str]) -> bool:
        """Follows these from now on; True when there are new ones, whose events until now went by."""
        new, self._more = subsystems - self._more, subsystems
        return bool(new)

    def drain(self) -> bool:
        """Take the events that wait; True when devices came, went or may have. Never blocks.

        SourceError when the socket gives nothing but errors: stop watching and scan periodically.
        """
        changed = False
        failures = 0
        for _ in range(_MAX_EVENTS):
            try:
                event, (sender, _groups) = self._socket.recvfrom(_EVENT_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                failures += 1
                if error.errno != errno.ENOBUFS and failures > _MAX_FAILURES:
                    raise SourceError(f"Device events ended: {error}", "The periodic scan goes on") from error
                changed = True  # events were lost
                continue
            changed = changed or (sender == 0 and self._is_relevant(event))  # 0: the kernel, and no process
        return changed

    def _is_relevant(self, event: bytes) -> bool:
        values = dict(field.split("=", 1) for field in os.fsdecode(event).split("\0")[1:] if "=" in field)
        subsystem, path = values.get("SUBSYSTEM", ""), values.get("DEVPATH", "")
        followed = subsystem in self._more or (subsystem in SUBSYSTEMS and is_node(subsystem, path.rpartition("/")[2]))
        return followed and values.get("ACTION") in _ACTIONS

    def close(self) -> None:
        """Give the socket back. Harmless when called twice."""
        self._socket.close()
