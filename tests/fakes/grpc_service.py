# SPDX-License-Identifier: Apache-2.0
"""A gRPC service over a real Unix socket, for tests: it can be slow, fail, never answer, be restarted on its socket."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

Methods = Mapping[str, tuple[Callable[[Any, Any], Any], Any]]
"""By name: what answers, and the class of the request."""


class FakeService:
    """The server. Set `delay_s`, `error`; `hang` makes every call wait until `release` or stop()."""

    def __init__(self, path: Path, service: str, methods: Methods) -> None:
        self.path = path
        self.error: tuple[grpc.StatusCode, str] | None = None
        self.delay_s = 0.0
        self.hang = False
        self.calls: Counter[str] = Counter()
        self._service, self._methods = service, methods
        self._released = threading.Event()
        self._server: Any = None

    def start(self) -> None:
        self._released.clear()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        methods = {name: self._handler(name, do, request) for name, (do, request) in self._methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service, methods),))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        self.release()
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        with suppress(FileNotFoundError):
            self.path.unlink()

    def release(self) -> None:
        """Let the calls that hang go on; later ones hang again while `hang` is set."""
        self._released.set()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _handler(self, name: str, do: Callable[[Any, Any], Any], request: Any) -> Any:
        def serve(message: Any, context: Any) -> Any:
            self.calls[name] += 1
            if self.hang:
                self._released.wait()
            if self.delay_s:
                self._released.wait(self.delay_s)
            if self.error is not None:
                context.abort(*self.error)
            return do(message, context)

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )


@contextmanager
def silent_socket(path: Path) -> Iterator[None]:
    """A socket that accepts connections and never says a word."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(16)
        yield
    path.unlink()
