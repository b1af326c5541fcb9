# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the web server (certificates, a protected server), daemon, node and probe."""

from __future__ import annotations

import logging
import os
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import sdnotify

from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.exporters import web
from kubenpu.exporters.web import WebServer
from kubenpu.exporters.web_access_file import AccessFile
from kubenpu.exporters.web_pages import node_routes
from kubenpu.kernel.pins import Pins
from kubenpu.service import clients as service_clients
from kubenpu.service import daemon
from kubenpu.service import node as service_node
from kubenpu.service.node import Node
from tests.fakes.certificates import Authority, Certificate
from tests.fakes.clients_machine import Machine
from tests.fakes.daemon_rig import FakeWatch, Rig
from tests.fakes.fake_libbpf import FakeKernel, FakeProbe, put_in
from tests.fakes.node_world import World
from tests.fakes.web_client import Client

# No deadline for an example: a busy machine is not a fault. The same examples in each run, so that a change fails for
# what it did; KUBENPU_SEARCH=1 looks for new ones.
hypothesis.settings.register_profile("kubenpu", deadline=None, derandomize=not os.environ.get("KUBENPU_SEARCH"))
hypothesis.settings.load_profile("kubenpu")

BODY = b"kubenpu_simulated 0\n" * 200
Serve = Callable[[str], Client]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def issued(authority: Authority) -> Certificate:
    return authority.issue("server")


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    return context


@pytest.fixture
def web_file(tmp_path: Path) -> Path:
    return tmp_path / "web.yml"


@pytest.fixture
def server_of(web_file: Path) -> Iterator[Callable[[str], WebServer]]:
    """Starts a server with this web configuration; afterwards no thread of it is left."""
    threads, servers = set(threading.enumerate()), []

    def start(text: str) -> WebServer:
        web_file.write_text(text)
        server = WebServer(
            ["127.0.0.1:0"], node_routes("/metrics", lambda _accept: ("text/plain", BODY), str), AccessFile(web_file)
        )
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def serve(server_of: Callable[[str], WebServer], trusting: ssl.SSLContext) -> Serve:
    def start(text: str) -> Client:
        context = trusting if "tls_server_config" in text else None
        return Client(int(server_of(text).describe().rpartition(":")[2]), context)

    return start


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at all the time."""
    monkeypatch.setattr(web, "CHECK_SECONDS", 0.02)


# ---- the daemon ----


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "kubenpu.toml"
    places = f'run_directory = "{tmp_path}"\nvarlink.address = "unix:{tmp_path}/varlink"\n'
    config.write_text(places + 'history.enabled = false\nweb.listen_address = ["127.0.0.1:0"]\n')
    return read_settings(parse_daemon_arguments(["--config.file", str(config)]))


@pytest.fixture
def rig(settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Rig]:
    """Afterwards no thread is left and SIGTERM is handled as before."""
    threads, watch = set(threading.enumerate()), FakeWatch()
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # a daemon that does not listen must not end the tests
    monkeypatch.setattr(daemon, "DeviceWatch", lambda _subsystems: watch)
    caplog.set_level(logging.INFO)
    made = Rig(settings, watch, caplog)
    monkeypatch.setattr(sdnotify, "SystemdNotifier", lambda: made)
    yield made
    signal.signal(signal.SIGTERM, before)
    watch.close()
    if made.node.ringing is not None:
        made.node.ringing.close()
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(service_node, "CounterStore", made.open_store)
    monkeypatch.setattr(service_node, "Resolver", made.make_resolver)
    monkeypatch.setattr(service_node, "Runtimes", lambda _sockets: made)
    monkeypatch.setattr(service_node, "boot_seconds", lambda: made.now)
    yield made
    for node in made.nodes:
        node.close()
    assert all(store.closed for store in made.stores)


@pytest.fixture
def node(world: World) -> Node:
    started = world.start()
    started.open()
    return started


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A node for kubenpu-clients."""
    made = Machine(tmp_path)
    monkeypatch.setattr(service_clients, "read_holders", made.list_holders)
    return made


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    """Afterwards every fd is closed again."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    fake = FakeKernel()
    put_in(fake, monkeypatch)
    yield fake
    os.close(fake.fds)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def probe(tmp_path: Path) -> FakeProbe:
    """On a kernel that can do everything."""
    from tests.unit.test_kernel_support import GOOD

    return FakeProbe(Pins(tmp_path / "kubenpu"), GOOD)
