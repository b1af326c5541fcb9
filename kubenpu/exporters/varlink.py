# SPDX-License-Identifier: Apache-2.0
"""Serves the interface of api/varlink.py on Unix sockets: connections, and their bounds.

Owns the listening sockets, the connections and one worker thread, inside run(). The varlink library's own server is not
used: it blocks, a thread per connection, and reads byte by byte without bound. Here a call has a bound and a deadline,
a connection has one call at work and the next when its reply was taken, and so many replies exist at once; who is slow
to take his is cut off, sooner when others wait. When all places are taken, the user who has most loses his oldest.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kubenpu.api.varlink import CALL_S, MAX_CALL_BYTES, MAX_CONNECTIONS, PATIENCE_S, TAKE_S
from kubenpu.exporters.picture import FRESH_S, NodePort, Picture, Pictures
from kubenpu.exporters.sockets import UNIX, Listener, listen_unix, passed_listeners, peer_user
from kubenpu.exporters.varlink_calls import Answers, Call, MalformedError
from kubenpu.model.errors import SourceError

log = logging.getLogger(__name__)
SOURCE = SYSTEMD_NAME = "varlink"
MODE = 0o666  # every local user may read
MAX_REPLIES = 8  # in memory at once, from when they are made until they are taken
READ_BYTES = 8 * 1024
ACCEPT_PAUSE_S = 0.5  # when there are no file descriptors

R = TypeVar("R")


def open_listeners(address: str) -> list[Listener]:
    """What systemd passed under our name, else `address`. Raises ConfigError or SourceError."""
    passed = passed_listeners(SYSTEMD_NAME, frozenset({socket.AF_UNIX}))
    try:
        return passed or [listen_unix(Path(address.removeprefix(UNIX)), MODE)]
    except OSError as e:
        raise SourceError(
            f"cannot listen on {address}: {e.strerror or e}", "Choose another varlink.address, or stop what uses it"
        ) from e


class Outlet:
    """Room for so many replies. Whoever waits for room makes those hurry who are being sent theirs."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(MAX_REPLIES)
        self._deadlines: set[asyncio.Timeout] = set()

    def hurry(self) -> None:
        """To be called before waiting for room."""
        soon = asyncio.get_running_loop().time() + PATIENCE_S
        for deadline in self._deadlines if self.room.locked() else ():
            if (deadline.when() or 0) > soon:
                deadline.reschedule(soon)

    async def send(self, to: socket.socket, data: bytes) -> None:
        """Raises TimeoutError when it is not taken in time."""
        async with asyncio.timeout(PATIENCE_S if self.room.locked() else TAKE_S) as deadline:
            self._deadlines.add(deadline)
            try:
                await asyncio.get_running_loop().sock_sendall(to, data)
            finally:
                self._deadlines.discard(deadline)


class Connection:
    """One client. `user`: whom the kernel says it belongs to."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        self.socket = accepted
        self.user = peer_user(accepted)
        self._unread = bytearray()

    async def read(self) -> bytes | None:
        """The next call, without its NUL; None at the end. Raises MalformedError for a long one, TimeoutError."""
        seen = 0
        async with asyncio.timeout(CALL_S):
            while (end := self._unread.find(0, seen)) < 0:
                seen = len(self._unread)
                if seen > MAX_CALL_BYTES:
                    break
                data = await asyncio.get_running_loop().sock_recv(self.socket, READ_BYTES)
                if not data:
                    return None
                self._unread += data
        if not 0 <= end <= MAX_CALL_BYTES:
            raise MalformedError("too long")
        call = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return call

    async def wait(self, seconds: float) -> bool:
        """So long, or until the other side has gone: then False."""
        loop, until, readable = asyncio.get_running_loop(), time.monotonic() + seconds, asyncio.Event()
        loop.add_reader(self.socket, readable.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await readable.wait()
        finally:
            loop.remove_reader(self.socket)
        if readable.is_set() and not self.socket.recv(1, socket.MSG_PEEK):
            return False
        await asyncio.sleep(max(0.0, until - time.monotonic()))  # what was sent is read after this call
        return True


class VarlinkServer:
    """`await run()` serves until it is cancelled, and closes what it listens on in the end."""

    def __init__(self, node: NodePort, pictures: Pictures, listeners: Sequence[Listener]) -> None:
        self._node = node
        self._pictures = pictures
        self._listeners = tuple(listeners)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="varlink")
        self._answers = Answers(self._picture)
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._shown_at = 0.0

    def describe(self) -> str:
        """The addresses listened on, for a log line."""
        return ", ".join(listener.describe() for listener in self._listeners)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outlet = Outlet()
        try:
            await self._do(lambda: self._node.note_source(SOURCE, "", 0.0))
            async with asyncio.TaskGroup() as accepting:
                for listener in self._listeners:
                    listener.socket.setblocking(False)
                    accepting.create_task(self._accept_all(listener.socket))
        finally:
            for listener in self._listeners:
                listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._worker.shutdown(cancel_futures=True)

    async def _do(self, work: Callable[[], R]) -> R:
        return await self._loop.run_in_executor(self._worker, work)

    def _picture(self) -> Picture:
        """In the worker."""
        picture = self._pictures.now()
        if picture.at != self._shown_at:
            self._shown_at = picture.at
            self._loop.call_soon_threadsafe(self._loop.call_later, 2 * FRESH_S, self._pictures.forget_old)
        return picture

    # ---- places ----

    async def _accept_all(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listener)
            except OSError as e:
                log.warning("cannot accept a connection: %s", e)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connection = Connection(accepted)
            if self._has_place(connection.user):
                task = self._connections[connection] = self._loop.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._on_end)
            else:
                accepted.close()

    def _has_place(self, user: int) -> bool:
        """Makes one if it can."""
        if len(self._connections) < MAX_CONNECTIONS:
            return True
        of = collections.Counter(connection.user for connection in self._connections)
        greediest, most = of.most_common(1)[0]
        if of[user] + 1 >= most:
            return False
        oldest = next(connection for connection in self._connections if connection.user == greediest)
        self._connections.pop(oldest).cancel()
        return True

    # ---- calls ----

    async def _serve(self, connection: Connection) -> None:
        try:
            while (data := await connection.read()) is not None:
                await self._answer(connection, data)
        except (MalformedError, OSError) as e:
            log.debug("a connection of user %d is cut: %s", connection.user, e or type(e).__name__)
        finally:
            connection.socket.close()
            self._connections.pop(connection, None)

    async def _answer(self, connection: Connection, data: bytes) -> None:
        call = await self._do(lambda: self._answers.begin(data))
        try:
            while await self._reply(connection, call) and call.pause_s is not None:
                if call.pause_s and not await connection.wait(call.pause_s):
                    return
        finally:
            if call.streams:
                await self._do(call.end)

    async def _reply(self, connection: Connection, call: Call) -> bool:
        """Makes the next reply and sends it, if there is one."""
        self._outlet.hurry()
        async with self._outlet.room:
            reply = await self._do(lambda: next(call.replies, None))
            if reply is not None:
                await self._outlet.send(connection.socket, reply + b"\0")
        return reply is not None

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A connection ends by itself or is cancelled; anything else is a mistake of ours, which must not be silent."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a Varlink connection failed: %s", error, exc_info=error)
