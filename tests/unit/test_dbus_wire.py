# SPDX-License-Identifier: Apache-2.0
"""What comes from the bus: addresses, messages of strangers, signatures, calls that wait."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.api.dbus import INVALID_ARGS, LIMITS_EXCEEDED
from kubenpu.exporters import dbus
from kubenpu.exporters.dbus_connection import (
    MAX_SIGNATURES,
    SYSTEM_BUS,
    Connection,
    decode,
    header_and_body_bytes,
    parse_address,
    system_bus_address,
)
from kubenpu.exporters.dbus_next_parts import Message, SignatureTree, Variant
from kubenpu.model.errors import SourceError
from tests.fakes.dbus_node import (
    call,
)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_address("unix:path=/run/a%20b,guid=12") == "/run/a b"
    assert parse_address("unix:path=/run/%E2%82%ac%zz%") == "/run/\u20ac%zz%"
    assert parse_address("tcp:host=x;unix:abstract=y") == "\0y"
    for wrong in ("", "unix:", "unix:path=", "tcp:host=x", "path=/run/x"):
        with pytest.raises(SourceError):
            parse_address(wrong)
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS", raising=False)
    assert system_bus_address() == SYSTEM_BUS
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/x")
    assert system_bus_address() == "unix:path=/x"


def test_big_endian_lengths_too() -> None:
    head = struct.pack(">4sIII", b"B\1\0\1", 8, 1, 9)
    assert header_and_body_bytes(head) == (16 + 16, 8)
    with pytest.raises(SourceError):
        header_and_body_bytes(b"HTTP/1.1 400 Bad")


def refused_of(*sent: bytes) -> list[tuple[int, str]]:
    """Serial and error of the calls that a connection refuses, which takes 10 KiB."""
    found: list[tuple[int, str]] = []

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            connection = Connection(reader, writer, 10240)
            ended = asyncio.Event()
            connection.on_call = lambda message: ended.set() if message.member == "Last" else None
            connection.on_bad_call = lambda message, name, _text: found.append((message.serial, name))
            theirs.sendall(b"".join(sent) + encoded(call("Last")))
            try:
                async with asyncio.timeout(20):
                    await ended.wait()
            finally:
                await connection.close()

    asyncio.run(main())
    return found


def encoded(message: Any) -> bytes:
    return bytes(message._marshall())


def test_of_a_large_call_the_header_is_read() -> None:
    large = call("GetUsage", "s", "x" * 20000)
    assert refused_of(encoded(large)) == [(9, LIMITS_EXCEEDED)]


def test_a_key_twice_is_refused() -> None:
    twice = encoded(call("GetCounters", "a{sv}uu", {"Pod": Variant("s", "x"), "Pox": Variant("s", "y")}, 0, 1))
    assert refused_of(twice.replace(b"Pox", b"Pod")) == [(9, INVALID_ARGS)]
    assert refused_of(twice) == []


def test_large_ones_that_are_skipped() -> None:
    signal = Message.new_signal("/a", "a.b", "S", "s", ["x" * 20000])
    signal.serial = 1
    long_header = call("M", path="/" + "a" * 20000)
    broken = bytearray(encoded(call("M", "s", "x" * 20000)))
    broken[3] = 9  # no version of the protocol
    assert refused_of(encoded(signal), encoded(long_header), bytes(broken)) == []


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_message_can_hurt(data: st.DataObject) -> None:
    """Bytes of a good message are changed; what comes out is a message or nothing."""
    good = bytearray(call("GetCounters", "a{sv}uu", {"Pod": Variant("s", "x")}, 0, 1)._marshall())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    found = decode(bytes(good))
    assert found is None or isinstance(found, Message)


def test_signatures_of_strangers_are_forgotten() -> None:
    for number in range(3 * MAX_SIGNATURES):
        signature = "".join("sybn"[number >> 2 * i & 3] for i in range(8))
        values = {"s": "", "y": 0, "b": False, "n": 0}
        assert decode(bytes(call("X", signature, *(values[token] for token in signature))._marshall())) is not None
    assert len(SignatureTree._cache) <= MAX_SIGNATURES + 4


def test_inbox_is_bounded_for_one_and_for_all() -> None:
    async def main() -> None:
        inbox = dbus.Inbox()
        calls = [Message("a.b", "/", "a.b", "M", sender=f":1.{i // 20}") for i in range(20 * 20)]
        taken = [message for message in calls if inbox.put(message)]
        assert len(taken) == dbus.MAX_WAITING
        assert sum(message.sender == ":1.0" for message in taken) == dbus.MAX_WAITING_OF_ONE
        assert [await inbox.get() for _ in taken] == taken
        assert inbox.put(calls[0])

    asyncio.run(main())
