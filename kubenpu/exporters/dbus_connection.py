# SPDX-License-Identifier: Apache-2.0
"""One connection to a message bus: for the server and for the client of kubenpuctl.

Owns a socket and a task that reads from it, inside `connected()`. Encoding and decoding is dbus-next's; its connection
is not used: it spins when the bus goes away during the handshake, never closes its socket, queues without bound, and
decodes whatever size a stranger sends. Refuses messages above `max_bytes`: of them only the header is read, and not
even that when it alone is as large. A call that cannot be decoded is refused as well. Names of workloads are made
printable, as in the metrics: D-Bus has no text but UTF-8 without NUL.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import os
import re
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

from kubenpu.api.dbus import DESKTOP, INVALID_ARGS, LIMITS_EXCEEDED, Fields
from kubenpu.exporters.dbus_next_parts import Message, MessageType, SignatureTree, Unmarshaller, Variant
from kubenpu.model.errors import SourceError

log = logging.getLogger(__name__)
SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
SYSTEM_BUS_VARIABLE = "DBUS_SYSTEM_BUS_ADDRESS"
BUS_PATH = "/org/freedesktop/DBus"
NO_REPLY = DESKTOP + ".Error.NoReply"
CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 10.0
MAX_BACKLOG_BYTES = 256 * 1024
MAX_SIGNATURES = 256
_HEAD = 16
_UNDECODABLE = (ValueError, TypeError, LookupError, EOFError, RecursionError, struct.error)
UNENCODABLE = (ValueError, TypeError, LookupError, AttributeError, struct.error)
"""What dbus-next raises for a value that D-Bus has no room for."""

OnMessage = Callable[[Any], None]


class CallError(SourceError):
    """A call was answered with an error, or not in time. `name` is the error's D-Bus name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def system_bus_address() -> str:
    return os.environ.get(SYSTEM_BUS_VARIABLE, SYSTEM_BUS)


def parse_address(address: str) -> str:
    """The path of the first Unix socket of a bus address; an abstract one begins with NUL."""
    for each in address.split(";"):
        transport, _, rest = each.partition(":")
        options = dict(option.partition("=")[::2] for option in rest.split(","))
        if transport == "unix" and options.get("path"):
            return _unquote(options["path"])
        if transport == "unix" and options.get("abstract"):
            return "\0" + _unquote(options["abstract"])
    raise SourceError(f"{address!r} is no address of a message bus on this machine", f"Give one like {SYSTEM_BUS}")


def _unquote(value: str) -> str:
    """Undoes percent-encoding. urllib.parse would be 0.4 MiB (Python 3.13)."""
    return os.fsdecode(re.sub(rb"%([0-9A-Fa-f]{2})", lambda code: bytes([int(code[1], 16)]), os.fsencode(value)))


@contextlib.asynccontextmanager
async def connected(address: str, max_bytes: int) -> AsyncIterator[Connection]:
    """A connection that has said Hello. Raises SourceError when there is no bus; it is closed at the end."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(parse_address(address))
            with contextlib.ExitStack() as undo:
                undo.callback(writer.close)
                await _authenticate(reader, writer)
                undo.pop_all()
    except TimeoutError as e:
        raise SourceError(f"the message bus at {address} does not answer") from e
    except PermissionError as e:
        raise SourceError(f"this user may not use the message bus at {address}", "Run it as one who may") from e
    except (OSError, ValueError) as e:
        raise SourceError(f"no message bus at {address}: {e}", "Install and start one: dbus-broker or dbus") from e
    connection = Connection(reader, writer, max_bytes)
    try:
        await connection.ask_bus("Hello")
        yield connection
    finally:
        await connection.close()


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The bus takes our user from the socket; what we say only has to agree."""
    writer.write(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
    answer = await reader.readline()
    if not answer.startswith(b"OK "):
        raise ValueError(f"it answered {answer[:80]!r}")
    writer.write(b"BEGIN\r\n")


class Connection:
    """Sends at any time, reads in the task `reading`, which ends with SourceError when the bus is gone.

    `on_call` is given the method calls, which stay without an answer otherwise; `on_bad_call` those of which only the
    header can be read, with name and text of the error; `on_signal` the signals asked for.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self.on_call: OnMessage | None = None
        self.on_bad_call: Callable[[Any, str, str], None] | None = None
        self.on_signal: OnMessage | None = None
        self._max_bytes = max_bytes
        self._serials = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        self._writer.transport.abort()  # a bus that has stopped would never take what is left
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def encode(self, message: Any) -> bytes:
        """May be called from any thread."""
        message.serial = next(self._serials) % 0xFFFFFFFF + 1
        return bytes(message._marshall())

    async def send(self, encoded: bytes) -> None:
        """Waits while the bus takes no more."""
        self._writer.write(encoded)
        try:
            await self._writer.drain()
        except OSError as e:
            raise SourceError(f"the message bus closed the connection: {e}") from e

    @property
    def waiting_bytes(self) -> int:
        """What the bus has not taken yet."""
        return int(self._writer.transport.get_write_buffer_size())

    def offer(self, encoded: bytes) -> bool:
        """Sends, unless the bus has too much of ours to take already."""
        if self.waiting_bytes > MAX_BACKLOG_BYTES:
            return False
        self._writer.write(encoded)
        return True

    async def ask_bus(self, member: str, signature: str = "", *values: object) -> list[Any]:
        """Calls the bus itself."""
        return await self.call(Message(DESKTOP, BUS_PATH, DESKTOP, member, signature=signature, body=list(values)))

    async def call(self, message: Any, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
        """The reply's values. Raises CallError, or SourceError if the bus is gone."""
        encoded = self.encode(message)
        answer = self._waiting[message.serial] = asyncio.get_running_loop().create_future()
        try:
            if self.reading.done():
                raise SourceError("the message bus closed the connection")
            async with asyncio.timeout(timeout_s):
                await self.send(encoded)
                reply = await answer
        except TimeoutError as e:
            text = f"{message.destination} does not answer to {message.member} within {timeout_s:g} s"
            raise CallError(NO_REPLY, text) from e
        finally:
            del self._waiting[message.serial]
        if reply.message_type is MessageType.ERROR:
            text = str(reply.body[0]) if reply.body else reply.error_name
            raise CallError(reply.error_name, f"{message.destination} refused {message.member}: {text}")
        return list(reply.body)

    async def _read(self) -> None:
        try:
            while True:
                message = await self._read_message()
                if message is not None:
                    self._dispatch(message)
        except (asyncio.IncompleteReadError, OSError) as e:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(SourceError("the message bus closed the connection"))
            raise SourceError("the message bus closed the connection") from e

    async def _read_message(self) -> Any:
        head = await self._reader.readexactly(_HEAD)
        header, body = header_and_body_bytes(head)
        if header > self._max_bytes:
            log.debug(
                "a message of %d bytes is skipped", header + body
            )  # no warning: a stranger could fill the journal
            await self._skip(header + body - _HEAD)
            return None
        head += await self._reader.readexactly(header - _HEAD)
        if header + body > self._max_bytes:
            await self._skip(body)
            self._refuse(head, LIMITS_EXCEEDED, f"a call has at most {self._max_bytes // 1024} KiB")
            return None
        message = decode(head + await self._reader.readexactly(body))
        if message is None:
            self._refuse(head, INVALID_ARGS, "these arguments cannot be read, or hold a key twice")
        return message

    def _refuse(self, head: bytes, error_name: str, text: str) -> None:
        message = decode(head[:4] + bytes(4) + head[8:])  # no body
        if message is not None and message.message_type is MessageType.METHOD_CALL and self.on_bad_call is not None:
            self.on_bad_call(message, error_name, text)

    async def _skip(self, count: int) -> None:
        while count:
            count -= len(await self._reader.readexactly(min(count, 65536)))

    def _dispatch(self, message: Any) -> None:
        match message.message_type:
            case MessageType.METHOD_CALL:
                if self.on_call is not None:
                    self.on_call(message)
            case MessageType.METHOD_RETURN | MessageType.ERROR:
                answer = self._waiting.get(message.reply_serial)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case _:
                if self.on_signal is not None:
                    self.on_signal(message)


def header_and_body_bytes(head: bytes) -> tuple[int, int]:
    """Lengths of the two parts of the message that begins with these 16 bytes, which belong to the first."""
    order = {0x6C: "<", 0x42: ">"}.get(head[0])
    if order is None:
        raise SourceError("what answers is no message bus")
    body, _, fields = struct.unpack(order + "III", head[4:])
    return _HEAD + (fields + 7) // 8 * 8, body


class _StrictUnmarshaller(Unmarshaller):  # type: ignore[misc] # dbus-next has no types for it
    """Refuses a dictionary that has a key twice, of which dbus-next would keep the last."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._entries = [0]  # of each array that is being read

    def read_dict_entry(self, type_: Any) -> Any:
        self._entries[-1] += 1
        return super().read_dict_entry(type_)

    def read_array(self, type_: Any) -> Any:
        self._entries.append(0)
        found = super().read_array(type_)
        if self._entries.pop() not in {0, len(found)}:
            raise ValueError("a dictionary has a key twice")
        return found


def decode(data: bytes) -> Any:
    """The message, None if it is none that we understand."""
    if len(SignatureTree._cache) > MAX_SIGNATURES:
        SignatureTree._cache.clear()  # senders choose signatures: without end, if they want
    try:
        return _StrictUnmarshaller(io.BytesIO(data)).unmarshall()
    except _UNDECODABLE as e:
        log.debug("a message is skipped: %s: %s", type(e).__name__, e)
        return None


# ---- values ----


def to_wire(signature: str, value: Any, clean: Callable[[str], str]) -> Any:
    """A value of the interface as dbus-next wants it; `clean` makes text fit for D-Bus."""
    match signature:
        case "s":
            return clean(value)
        case "as":
            return [clean(text) for text in value]
        case "a{ss}":
            return {clean(key): clean(text) for key, text in value.items()}
        case "a(suu)":
            return [[clean(name), *numbers] for name, *numbers in value]
        case "a{sv}":
            return fields_to_wire(value, clean)
        case _:
            return value


def fields_to_wire(fields: Fields, clean: Callable[[str], str]) -> dict[str, Any]:
    return {name: Variant(s, to_wire(s, value, clean)) for name, (s, value) in fields.items()}


def from_wire(value: Any) -> Any:
    """Plain values: variants are opened, at any depth."""
    match value:
        case Variant():
            return from_wire(value.value)
        case dict():
            return {key: from_wire(each) for key, each in value.items()}
        case list():
            return [from_wire(each) for each in value]
        case _:
            return value
