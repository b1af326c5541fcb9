# SPDX-License-Identifier: Apache-2.0
"""The parts of dbus-next that are used here: messages and their encoding. Import them from nowhere else.

Running dbus-next's package imports all of it: its GLib half, with GLib's bindings where a host has them (megabytes), an
XML parser, the connection that is not used.
"""

from __future__ import annotations

import importlib

from kubenpu.exporters.parts import beside_package

with beside_package("dbus_next"):
    importlib.import_module("dbus_next.errors")  # before dbus_next.message: each imports the other
    from dbus_next._private.unmarshaller import Unmarshaller
    from dbus_next.constants import MessageFlag, MessageType
    from dbus_next.message import Message
    from dbus_next.signature import SignatureTree, Variant

__all__ = ["Message", "MessageFlag", "MessageType", "SignatureTree", "Unmarshaller", "Variant"]
