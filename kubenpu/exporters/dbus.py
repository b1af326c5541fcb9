# SPDX-License-Identifier: Apache-2.0
"""Serves the interface of api/dbus.py on a message bus, as long as there is one, and says what changes.

Owns the connection, one worker thread and the calls that wait. Data comes from Pictures. Calls are answered one after
the other, the next when the bus has taken the reply, so that neither a flood of calls nor a slow reader makes this
process grow: calls beyond a bound are refused, signals that the bus does not take are dropped. A bus that is not there
or goes away is tried again, ever more rarely.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from kubenpu.api import dbus as api
from kubenpu.exporters.dbus_calls import Answers, UsageOf, done, find_special, refuse, signal_message
from kubenpu.exporters.dbus_connection import UNENCODABLE, Connection, connected, system_bus_address
from kubenpu.exporters.dbus_next_parts import MessageFlag
from kubenpu.exporters.dbus_objects import Announced, Emission, Objects, announce_all, plan_signals
from kubenpu.exporters.dbus_rights import ROOT, find_user, is_granted
from kubenpu.exporters.picture import FRESH_S, NodePort, Picture, Pictures
from kubenpu.model.errors import KubeNpuError, SourceError

log = logging.getLogger(__name__)
SOURCE = "dbus"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
PUBLISH_EVERY_S = 1.0
PUBLISH_SHARE = 0.02  # of a CPU, at most, whether anybody listens or not
MAX_WAITING, MAX_WAITING_OF_ONE = 256, 16
MAX_DECISIONS, MAX_SLOW, MAX_LONG_OF_ONE = 8, 6, 2
DO_NOT_QUEUE, PRIMARY_OWNER = 4, 1

R = TypeVar("R")


class Inbox:
    """Calls that wait for their answer: so many at most, and so many of one sender."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)
        self._of: collections.Counter[str] = collections.Counter()

    def put(self, call: Any) -> bool:
        if self._calls.full() or self._of[call.sender] >= MAX_WAITING_OF_ONE:
            return False
        self._of[call.sender] += 1
        self._calls.put_nowait(call)
        return True

    async def get(self) -> Any:
        call = await self._calls.get()
        self._of[call.sender] -= 1
        if not self._of[call.sender]:
            del self._of[call.sender]
        return call


class Places:
    """Calls whose answer takes long: so many at most, and so many of one user. Root's are beside them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._users: dict[asyncio.Task[None], int] = {}

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)

    def free_for(self, user: int) -> bool:
        users = list(self._users.values())
        others = len(users) - users.count(ROOT)
        return users.count(user) < MAX_LONG_OF_ONE and (user == ROOT or others < self._most)

    def begin(self, user: int, work: Coroutine[Any, Any, None]) -> None:
        """It ends with the session at the latest."""
        task = asyncio.create_task(work)
        self._users[task] = user
        task.add_done_callback(self._users.pop)


class Session:
    """What lives as long as one connection. `dropped`: messages that the bus has not taken since it last took one."""

    def __init__(self, connection: Connection, on_drop: Callable[[], None]) -> None:
        self.connection = connection
        self._on_drop = on_drop
        self.inbox = Inbox()
        self.decisions = Places(MAX_DECISIONS)
        self.slow = Places(MAX_SLOW)
        self.dropped = 0
        connection.on_call = self._receive
        connection.on_bad_call = self._refuse_bad

    def _receive(self, call: Any) -> None:
        special = find_special(call)
        heard = _wants_reply(call) or (special is not None and special.action)
        if heard and not self.inbox.put(call):
            self.refuse(call, "too many calls are waiting")

    def _refuse_bad(self, call: Any, error_name: str, text: str) -> None:
        if _wants_reply(call):
            self.offer(self.connection.encode(refuse(call, error_name, text)))

    def offer(self, encoded: bytes) -> None:
        """Sends what may be lost."""
        if not self.connection.offer(encoded):
            self.dropped += 1
            self._on_drop()
        elif self.dropped:
            log.warning("%d messages were dropped: the message bus did not take them", self.dropped)
            self.dropped = 0

    def refuse(self, call: Any, text: str) -> None:
        self.offer(self.connection.encode(refuse(call, api.LIMITS_EXCEEDED, text)))


def _wants_reply(call: Any) -> bool:
    return not call.flags & MessageFlag.NO_REPLY_EXPECTED


class DbusPort(NodePort, Protocol):
    """What is needed of the node besides."""

    def note_dropped(self, count: int) -> None:
        """So many messages more were dropped."""


class DbusServer:
    """`await run()` serves until it is cancelled. `address` of the bus is written as D-Bus does, "system": that one.

    `reload` is awaited for a caller who may ask for it; it raises KubeNpuError when that did not work. `usage` may take
    seconds.
    """

    def __init__(
        self,
        node: DbusPort,
        pictures: Pictures,
        address: str,
        reload: Callable[[], Awaitable[None]],
        usage: UsageOf,
    ) -> None:
        self._node = node
        self._pictures = pictures
        self._reload = reload
        self._address = system_bus_address() if address == "system" else address
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dbus")
        self._slow_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
        self._changed = asyncio.Event()
        self._answers = Answers(self._now, usage)
        self._objects: Objects | None = None
        self._dropped = 0  # and not told to the node yet
        self._trouble = ""

    def changed(self) -> None:
        """Something may be different now; subscribers will be told, if it is. To be called in the loop of run()."""
        self._pictures.forget()
        self._changed.set()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_S
        try:
            while True:
                begin = time.monotonic()
                reason = await self._serve(begin)
                pause = FIRST_PAUSE_S if time.monotonic() - begin > LONGEST_PAUSE_S else pause
                await self._note(reason, begin)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            self._worker.shutdown(cancel_futures=True)
            self._slow_worker.shutdown(wait=False, cancel_futures=True)  # a report has a deadline; the loop has none

    async def _serve(self, begin: float) -> str:
        """One connection from begin to end; returns why it ended."""
        try:
            async with connected(self._address, api.MAX_CALL_BYTES) as connection:
                session = Session(connection, self._count_drop)
                await _own_name(connection)
                await self._note("", begin)
                await self._until_lost(session)
        except SourceError as e:
            return str(e)
        return "the connection ended"

    async def _note(self, reason: str, begin: float) -> None:
        took = 0.0 if reason else time.monotonic() - begin
        await self._do(lambda: self._node.note_source(SOURCE, reason, took))

    async def _until_lost(self, session: Session) -> None:
        tasks = [asyncio.create_task(work(session)) for work in (self._answer_all, self._publish_all)]
        try:
            ended, _ = await asyncio.wait([session.connection.reading, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            tasks += [*session.decisions, *session.slow]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _do(self, work: Callable[[], R]) -> R:
        return await self._loop.run_in_executor(self._worker, work)

    # ---- the picture, in the worker ----

    def _now(self) -> Objects:
        picture = self._pictures.now()
        objects = self._objects
        if objects is None or objects.picture is not picture:
            objects = self._objects = Objects(picture)
            self._loop.call_soon_threadsafe(self._loop.call_later, 2 * FRESH_S, self._forget, picture)
        return objects

    def _forget(self, picture: Picture) -> None:
        self._pictures.forget_old()
        if self._objects is not None and self._objects.picture is picture:
            self._objects = None

    # ---- calls ----

    async def _answer_all(self, session: Session) -> None:
        while True:
            call = await session.inbox.get()
            special = find_special(call)
            if special is None:
                await session.connection.send(await self._do(partial(self._answer, session, call)))
            else:
                await self._begin(session, call, special)

    async def _begin(self, session: Session, call: Any, special: api.Method) -> None:
        """What takes long goes on beside all else."""
        user = await find_user(session.connection, call.sender)
        places = session.slow if special.slow else session.decisions
        if user is None:
            session.refuse(call, "the bus does not tell whose call it is")
        elif not places.free_for(user):
            session.refuse(call, f"too many calls wait for {'the history' if special.slow else 'their right'}")
        elif special.slow:
            places.begin(user, self._answer_slowly(session, call))
        else:
            places.begin(user, self._decide(session, call, user, special.action))

    def _answer(self, session: Session, call: Any) -> bytes:
        try:
            return session.connection.encode(self._answers.answer(call))
        except UNENCODABLE as e:
            self._note_unencodable(f"{call.member} of {call.path}", e)
            return session.connection.encode(refuse(call, api.FAILED, "the answer does not fit into D-Bus"))

    def _note_unencodable(self, what: str, error: Exception) -> None:
        """Once: callers must not fill the journal."""
        trouble = f"{what} cannot be sent: {type(error).__name__}: {error}"
        if trouble != self._trouble:
            log.error("%s", trouble)
            self._trouble = trouble

    async def _answer_slowly(self, session: Session, call: Any) -> None:
        """One after the other, beside all else."""
        answered = await self._loop.run_in_executor(self._slow_worker, partial(self._answer, session, call))
        with contextlib.suppress(SourceError):  # the bus went away, and the caller with it
            await session.connection.send(answered)

    async def _decide(self, session: Session, call: Any, user: int, action: str) -> None:
        """Reload, the one call that is not everybody's."""
        interactive = bool(call.flags & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION)
        with contextlib.suppress(SourceError):  # the bus went away, and the caller with it
            if call.signature:
                reply = refuse(call, api.INVALID_ARGS, f"{call.member} takes nothing")
            elif user == ROOT or await is_granted(session.connection, call.sender, action, interactive):
                reply = await self._reload_for(call)
            else:
                reply = refuse(
                    call, api.ACCESS_DENIED, f"{call.member} is for root and for whom polkit grants {action}"
                )
            if _wants_reply(call):
                await session.connection.send(session.connection.encode(reply))

    async def _reload_for(self, call: Any) -> Any:
        try:
            await self._reload()
        except KubeNpuError as e:
            return refuse(call, api.FAILED, str(e))
        finally:
            self.changed()
        return done(call)

    # ---- signals ----

    def _count_drop(self) -> None:
        self._dropped += 1

    async def _publish_all(self, session: Session) -> None:
        announced: Announced | None = None
        while True:
            begin = time.monotonic()
            dropped, self._dropped = self._dropped, 0
            await self._do(partial(self._node.note_dropped, dropped))
            encoded, announced = await self._do(partial(self._plan, session, announced))
            for signal in encoded:
                session.offer(signal)
            await asyncio.sleep(max(PUBLISH_EVERY_S, (time.monotonic() - begin) / PUBLISH_SHARE))
            await self._changed.wait()
            self._changed.clear()

    def _plan(self, session: Session, announced: Announced | None) -> tuple[list[bytes], Announced]:
        objects = self._now()
        if announced is None:
            return [], announce_all(objects)
        emissions, after = plan_signals(announced, objects)
        return [encoded for each in emissions if (encoded := self._encode_signal(session, each))], after

    def _encode_signal(self, session: Session, emission: Emission) -> bytes:
        """Nothing when it cannot be sent."""
        try:
            return session.connection.encode(signal_message(emission))
        except UNENCODABLE as e:
            self._note_unencodable(f"{emission.member} of {emission.path}", e)
            return b""


async def _own_name(connection: Connection) -> None:
    reply = await connection.ask_bus("RequestName", "su", api.NAME, DO_NOT_QUEUE)
    if reply != [PRIMARY_OWNER]:
        raise SourceError(f"the name {api.NAME} belongs to another process", "Stop the other kubenpud")
