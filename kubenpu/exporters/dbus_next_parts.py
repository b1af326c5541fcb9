# SPDX-License-Identifier: Apache-2.0
"""The parts of dbus-next that are used here: messages and their encoding. Import them from nowhere else.

Running dbus-next's package imports all of it: its GLib half, with GLib's bindings where a host has them (megabytes), an
XML parser, the connection that is not used. So the package is not run; its modules are loaded beside an empty one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types


def _skip_package() -> None:
    spec = importlib.util.find_spec("dbus_next")
    if spec is not None and "dbus_next" not in sys.modules:
        package = types.ModuleType("dbus_next")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["dbus_next"] = package
    importlib.import_module("dbus_next.errors")  # before dbus_next.message: each imports the other


_skip_package()

from dbus_next._private.unmarshaller import Unmarshaller  # noqa: E402
from dbus_next.constants import MessageFlag, MessageType  # noqa: E402
from dbus_next.message import Message  # noqa: E402
from dbus_next.signature import SignatureTree, Variant  # noqa: E402

__all__ = ["Message", "MessageFlag", "MessageType", "SignatureTree", "Unmarshaller", "Variant"]
