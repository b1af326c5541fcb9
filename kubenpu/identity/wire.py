# SPDX-License-Identifier: Apache-2.0
"""The protobuf wire format, as far as answers of runtimes and kubelets need it: texts, maps of texts, nested messages,
whole numbers.

Pure. The protobuf library would add 5 MiB to kubenpud for four small messages; the tests compare both with each other.
Other wire types are skipped; what is malformed is a ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

Data = TypeVar("Data", bytes, memoryview)
Message = Mapping[int, list[bytes]]
"""Field number -> its length-delimited values, in order."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


def read_message(data: bytes) -> Message:
    """The strings and messages in `data`."""
    found: dict[int, list[bytes]] = {}
    for number, value in walk_message(data):
        if isinstance(value, bytes):
            found.setdefault(number, []).append(value)
    return found


def walk_message(data: Data) -> Iterator[tuple[int, Data | int]]:
    """The same and whole numbers one by one, in order, by number of their fields. Of a memoryview nothing is copied."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"wire type {kind} is not one of protobuf 3")
        size, at = _read_varint(data, at) if kind == _BYTES else (8 if kind == _FIXED64 else 4, at)
        if at + size > len(data):
            raise ValueError("the message is cut short")
        if kind == _BYTES:
            yield tag >> 3, data[at : at + size]
        at += size


def read_numbers(data: bytes) -> Mapping[int, int]:
    """The numbers in a message, the last of each field; as protobuf 3 leaves it out, 0 is one that is not there."""
    return {number: value for number, value in walk_message(data) if isinstance(value, int)}


def read_text(message: Message, number: int) -> str:
    """A string, "" when it is not there. Bytes that are not UTF-8 become replacement characters."""
    values = message.get(number)
    return values[-1].decode("utf-8", "replace") if values else ""


def nested(message: Message, number: int) -> Message:
    """A message, empty when it is not there; several are one, as protobuf merges them."""
    return read_message(b"".join(message.get(number, ())))


def text_map(message: Message, number: int) -> dict[str, str]:
    """A map<string, string>; the last entry of a key counts."""
    entries = (read_message(value) for value in message.get(number, ()))
    return {read_text(entry, 1): read_text(entry, 2) for entry in entries}


def write_text(number: int, value: str) -> bytes:
    """A string field, left out when empty, as protobuf 3 does."""
    return write_bytes(number, value.encode()) if value else b""


def write_bytes(number: int, value: bytes) -> bytes:
    """A nested message, already written."""
    return _write_varint(number << 3 | _BYTES) + _write_varint(len(value)) + value


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES):
        if at >= len(data):
            raise ValueError("the message is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
