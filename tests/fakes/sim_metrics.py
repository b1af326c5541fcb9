# SPDX-License-Identifier: Apache-2.0
"""An HTTP server on a free port that answers every path with one text: a kubenpud for tests of its clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serve_text(body: str | bytes | Callable[[], str], status: int = 200) -> Iterator[str]:
    """Yields the URL; the server is gone at the end of the block. A function is asked at each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = body() if callable(body) else body
            data = text if isinstance(text, bytes) else text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: object) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_url() -> str:
    """An address where nothing listens."""
    with serve_text("") as url:
        pass
    return url
