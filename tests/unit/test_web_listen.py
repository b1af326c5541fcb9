# SPDX-License-Identifier: Apache-2.0
"""Where metrics are listened for: Unix sockets and their files, and sockets that systemd passes."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubenpu.exporters.sockets import Listener, passed_indexes
from kubenpu.exporters.web import WebServer
from kubenpu.exporters.web_listen import listen, open_listeners, passed_for_metrics
from kubenpu.exporters.web_pages import node_routes
from kubenpu.model.errors import ConfigError

ROUTES = node_routes("/metrics", lambda _accept: ("text/plain", b"x 1\n"), str)


@contextmanager
def running(*addresses: str, passed: tuple[Listener, ...] = ()) -> Iterator[WebServer]:
    server = WebServer(addresses, ROUTES, passed=passed)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask_unix(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        client = http.client.HTTPConnection("localhost")
        client.sock = connection
        client.request("GET", "/metrics")
        return client.getresponse().status


def ask_port(port: int) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        client.request("GET", "/metrics")
        return client.getresponse().status
    finally:
        client.close()


def leave_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
        old.listen()


# ---- Unix sockets ----


def test_unix_socket_is_served_and_its_file_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with running(f"unix:{path}", "127.0.0.1:0") as server:
        assert server.describe().startswith(f"unix:{path}, 127.0.0.1:")
        assert stat.filemode(path.stat().st_mode) == "srw-rw----"
        assert ask_unix(path) == 200
    assert not path.exists()


def test_stale_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    leave_stale(path)
    with running(f"unix:{path}"):
        assert ask_unix(path) == 200


def test_socket_in_use_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with running(f"unix:{path}"):
        with pytest.raises(ConfigError, match=f"cannot listen on unix:{path}: Address already in use"):
            listen(f"unix:{path}")
        assert ask_unix(path) == 200


def test_busy_socket_is_not_taken(tmp_path: Path) -> None:
    """Its queue is full: a connection that would have to wait says that somebody is there."""
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = []
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            if waiting[-1].connect_ex(str(path)):
                break
        with pytest.raises(ConfigError, match="Address already in use"):
            listen(f"unix:{path}")
        for each in waiting:
            each.close()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="Address already in use"):
        listen(f"unix:{path}")
    assert path.read_text() == "precious"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="Address already in use"):
        listen(f"unix:{path}")


def test_file_of_another_stays(tmp_path: Path) -> None:
    """Somebody replaced ours while we ran."""
    path = tmp_path / "metrics.sock"
    with running(f"unix:{path}"):
        path.unlink()
        leave_stale(path)
    assert path.exists()


@pytest.mark.parametrize(
    "address", ["unix:", "unix:metrics.sock", "unix:/nonexistent/metrics.sock", "unix:/" + "x" * 200]
)
def test_unix_addresses_that_cannot_be(address: str) -> None:
    with pytest.raises(ConfigError):
        listen(address)


def test_all_or_nothing(tmp_path: Path) -> None:
    first = tmp_path / "first.sock"
    before = list(Path("/proc/self/fd").iterdir())
    with pytest.raises(ConfigError):
        open_listeners([f"unix:{first}", "unix:/nonexistent/second.sock"])
    assert not first.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


# ---- sockets from systemd ----


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, [0, 1]),
        ({"LISTEN_PID": "8", "LISTEN_FDS": "2"}, []),
        ({"LISTEN_FDS": "2"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "x"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "-1"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "999"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "varlink:metrics:metrics"}, [1, 2]),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "varlink"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x:metrics"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "1", "LISTEN_FDNAMES": ""}, []),
    ],
)
def test_which_sockets_are_ours(environment: dict[str, str], expected: list[int]) -> None:
    assert passed_indexes("metrics", True, environment, 7) == expected


@contextmanager
def passing(*sockets: socket.socket) -> Iterator[tuple[dict[str, str], int]]:
    """The environment systemd would set, and the first number; duplicates sit where they must be, one by one."""
    first = 200
    for index, each in enumerate(sockets):
        os.dup2(each.fileno(), first + index)
    yield {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets))}, first
    for index in range(len(sockets)):
        try:
            os.close(first + index)
        except OSError:
            continue  # the server that took it has closed it


def test_passed_sockets_are_served_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        with passing(tcp, unix) as (environment, first):
            passed = tuple(passed_for_metrics(True, environment, first))
            assert not os.get_inheritable(first)
            port = tcp.getsockname()[1]
            with running(f"127.0.0.1:{port}", "unix:/nonexistent/x", passed=passed) as server:
                assert server.describe() == f"127.0.0.1:{port}, unix:{path}"
                assert (ask_port(port), ask_unix(path)) == (200, 200)
    assert path.exists()  # systemd's


def test_no_passed_socket_where_one_is_required() -> None:
    assert passed_for_metrics(False, {}) == []
    with pytest.raises(ConfigError, match=r"kubenpud-metrics\.socket"):
        passed_for_metrics(True, {})


def test_passed_things_that_cannot_be_served(tmp_path: Path) -> None:
    with socket.socket() as deaf, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        for wrong in (deaf, datagram):
            with passing(wrong) as (environment, first), pytest.raises(ConfigError, match="does not listen"):
                passed_for_metrics(False, environment, first)
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    with (tmp_path / "file").open("w") as file, pytest.raises(ConfigError, match="is no socket"):
        passed_for_metrics(False, environment, file.fileno())
    with pytest.raises(ConfigError, match="is no socket"):
        passed_for_metrics(False, environment, 250)


def test_many_clients_at_once_find_the_queue_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    answers: list[int] = []
    with running(f"unix:{path}"):
        clients = [threading.Thread(target=lambda: answers.append(ask_unix(path))) for _ in range(20)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(20)
    assert answers == [200] * 20


def test_a_host_name_no_resolver_takes_is_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        listen("a" * 70 + ".example:80")
