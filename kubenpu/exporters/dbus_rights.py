# SPDX-License-Identifier: Apache-2.0
"""Who a caller is, and whether one who is not root may do what not everybody may: when polkit says so.

Data comes from the bus, which knows the user behind a connection, and from polkit, which is told the connection and
not the process: a process id may be another's by then. Everything but a clear yes is a no: no polkit, an error, an
answer of another form, none in time.
"""

from __future__ import annotations

import logging

from kubenpu.exporters.dbus_connection import CallError, Connection
from kubenpu.exporters.dbus_next_parts import Message, Variant

log = logging.getLogger(__name__)
POLKIT = "org.freedesktop.PolicyKit1"
POLKIT_PATH = "/org/freedesktop/PolicyKit1/Authority"
ALLOW_USER_INTERACTION = 1
ROOT = 0
POLKIT_TIMEOUT_S, PERSON_TIMEOUT_S = 5.0, 120.0


async def find_user(connection: Connection, sender: str) -> int | None:
    """Whose the connection of this unique name is. None when it is gone."""
    try:
        (user,) = await connection.ask_bus("GetConnectionUnixUser", "s", sender)
    except CallError as e:
        log.debug("nobody knows who %s is: %s", sender, e)
        return None
    return int(user)


async def is_granted(connection: Connection, sender: str, action: str, interactive: bool) -> bool:
    """Whether polkit says so of the caller with this unique name. `interactive`: it may ask a person."""
    try:
        match await _ask_polkit(connection, sender, action, interactive):
            case [[True, _, _]]:
                return True
    except CallError as e:
        log.debug("%s is refused to %s: %s", action, sender, e)
    return False


async def _ask_polkit(connection: Connection, sender: str, action: str, interactive: bool) -> list[object]:
    """The bus may start polkit for this."""
    subject = ["system-bus-name", {"name": Variant("s", sender)}]
    flags = ALLOW_USER_INTERACTION if interactive else 0
    question = Message(
        POLKIT,
        POLKIT_PATH,
        f"{POLKIT}.Authority",
        "CheckAuthorization",
        signature="(sa{sv})sa{ss}us",
        body=[subject, action, {}, flags, ""],
    )
    return await connection.call(question, PERSON_TIMEOUT_S if interactive else POLKIT_TIMEOUT_S)
