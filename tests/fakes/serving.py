# SPDX-License-Identifier: Apache-2.0
"""A server of kubenpud's in a thread of its own, with its loop, for tests that ask it from outside.

Owns the thread and the server from the beginning of the block to its end. What is served, subclasses say.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Generic, Protocol, Self, TypeVar

DEADLINE_S = 30.0


class Server(Protocol):
    """What a thread can serve."""

    async def run(self) -> None:
        """Until it is cancelled."""


S = TypeVar("S", bound=Server)


class ServingThread(ABC, Generic[S]):
    """Ended with the block, which fails if the server ended before."""

    loop: asyncio.AbstractEventLoop
    server: S
    _task: asyncio.Task[None]

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="serving")

    @abstractmethod
    def make_server(self) -> S:
        """Called in the loop."""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        ended = self._task.done()
        self.loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert not ended

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = self.make_server()
        self._task = asyncio.create_task(self.server.run())
        self._started.set()
        await asyncio.wait([self._task])
