# SPDX-License-Identifier: Apache-2.0
"""kubenpud as others meet it: formats, sockets, and a real Prometheus that scrapes it."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.fakes.certificates import Authority
from tests.fakes.kubenpud import DEADLINE_S, Kubenpud, kubenpud, protected, write_settings
from tests.fakes.prometheus import ask, prometheus
from tests.fakes.sim_tally import wait_until
from tests.fakes.web_client import Client, free_port

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.25,*/*;q=0.1"  # noqa: E501
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"  # noqa: E501


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A kubenpud for tests that only read."""
    number = free_port()
    file = write_settings(tmp_path_factory.mktemp("kubenpud"), f'web.listen_address = ["localhost:{number}"]\n')
    with kubenpud(file) as daemon:
        daemon.wait_said("READY=1")
        yield number


# ---- R09: content negotiation ----


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("text/html", TEXT),
        ("application/openmetrics-text;version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8", OPENMETRICS),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
    ],
)
def test_formats(port: int, accept: str | None, content_type: str) -> None:
    headers = {} if accept is None else {"Accept": accept}
    answer = Client(port).ask(headers=headers)
    assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
    text = answer.body.decode()
    openmetrics = content_type == OPENMETRICS
    families = list((parse_openmetrics if openmetrics else parse_text)(text))
    assert "kubenpu_device_info" in {family.name.removesuffix("_info") + "_info" for family in families}
    assert text.endswith("# EOF\n") == openmetrics
    zipped = Client(port).ask(headers={"Accept-Encoding": "gzip", **headers})
    assert zipped.headers["Content-Encoding"] == "gzip"
    steady = [line for line in text.splitlines() if "seconds" not in line]
    assert [line for line in gzip.decompress(zipped.body).decode().splitlines() if "seconds" not in line] == steady
    head = Client(port).ask(method="HEAD", headers=headers)
    assert (head.status, head.headers["Content-Type"], head.body) == (200, content_type, b"")


def test_wrong_method_and_path(port: int) -> None:
    for method, path, status in (("POST", "/metrics", 405), ("GET", "/metric", 404)):
        answer = Client(port).ask(path, method)
        assert (answer.status, answer.headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
        assert answer.body


def test_promtool_finds_nothing_to_complain_about(port: int) -> None:
    golden = Path(__file__).parents[1] / "golden" / "scrape.txt"
    for text in (Client(port).ask().body, golden.read_bytes()):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- a real Prometheus ----


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def prometheus_config(plain: int, secured: int, authority: Authority) -> dict[str, object]:
    client = authority.issue("prometheus")
    config: dict[str, object] = yaml.safe_load(f"""\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: plain
  static_configs: [{{targets: ["localhost:{plain}"]}}]
- job_name: secured
  scheme: https
  tls_config: {{ca_file: {authority.cert}, cert_file: {client.cert}, key_file: {client.key}}}
  basic_auth: {{username: prometheus, password: secret}}
  static_configs: [{{targets: ["localhost:{secured}"]}}]
""")
    return config


def test_prometheus_scrapes_plain_and_secured(port: int, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "kubenpud").mkdir()
    settings, _, secured = protected(tmp_path / "kubenpud", authority)
    with kubenpud(settings) as daemon:
        daemon.wait_said("READY=1")
        config, directory = prometheus_config(port, secured, authority), tmp_path / "prometheus"
        with prometheus(config, directory) as own:
            assert wait_until(lambda: len(ask(own, "up == 1", "job")) == 2, DEADLINE_S), (directory / "log").read_text()
            for job in ("plain", "secured"):
                assert len(ask(own, f'kubenpu_device_info{{job="{job}"}}', "device")) > 1
                ((version,),) = ask(own, f'kubenpu_build_info{{job="{job}"}}', "version")
                assert version


# ---- sockets ----


def ask_unix(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(b"GET /-/healthy HTTP/1.1\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_exactly_the_asked_sockets(tmp_path: Path) -> None:
    one, two, three, four = (free_port() for _ in range(4))
    path = tmp_path / "metrics.sock"
    asked = [f"127.0.0.1:{one}", f"[::1]:{two}", f":{three}", f"localhost:{four}", f"unix:{path}"]
    bound = {f"127.0.0.1:{one}", f"[::1]:{two}", f"[::]:{three}", str(path)}
    with kubenpud(write_settings(tmp_path, f'web.listen_address = {asked}\nvarlink.address = ""\n')) as daemon:
        daemon.wait_said("READY=1")
        local = {f"127.0.0.1:{four}", f"[::1]:{four}"}  # which of them is for the resolver to say
        assert listening(daemon) - local == bound
        assert len(listening(daemon) & local) == 1
        assert Client(three).ask().status == Client(four).ask().status == 200
        assert b" 200 OK" in ask_unix(path)
        daemon.process.kill()
        daemon.process.wait()
        assert path.exists()
    with kubenpud(write_settings(tmp_path, f'web.listen_address = ["unix:{path}"]\n')) as daemon:
        daemon.wait_said("READY=1")  # in spite of what the killed one left
        assert b" 200 OK" in ask_unix(path)
    assert not path.exists()


def listening(daemon: Kubenpud) -> set[str]:
    """Local addresses of its listening sockets, as the kernel has them."""
    inodes = set()
    for entry in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        target = str(entry.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for name, address_of in (("tcp", _address4), ("tcp6", _address6)):
        for line in Path(f"/proc/{daemon.process.pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(address_of(fields[1]))
    for line in Path(f"/proc/{daemon.process.pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and int(fields[3], 16) & 0x10000:
            found.add(fields[7])
    return found


def _address4(text: str) -> str:
    host, port = text.split(":")
    return f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{int(port, 16)}"


def _address6(text: str) -> str:
    host, port = text.split(":")
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, 32, 8)]
    return f"[{socket.inet_ntop(socket.AF_INET6, b''.join(words))}]:{int(port, 16)}"


@pytest.mark.parametrize("names", [None, "metrics:metrics"])
def test_socket_activation(tmp_path: Path, names: str | None) -> None:
    """The settings ask for a third address: it is not bound."""
    path, unwanted = tmp_path / "metrics.sock", free_port()
    text = f'web.systemd_socket = true\nweb.listen_address = ["127.0.0.1:{unwanted}"]\nvarlink.address = ""\n'
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        port = tcp.getsockname()[1]
        with kubenpud(write_settings(tmp_path, text), [tcp, unix], names) as daemon:
            assert b" 200 OK" in ask_unix(path)  # asked before it listened, as at boot
            assert Client(port).ask().status == 200
            daemon.wait_said("READY=1")
            assert listening(daemon) == {f"127.0.0.1:{port}", str(path)}
    assert path.exists()


def test_sockets_of_another_name_are_not_ours(tmp_path: Path) -> None:
    own = free_port()
    text = f'web.listen_address = ["127.0.0.1:{own}"]\n'
    with socket.create_server(("127.0.0.1", 0)) as other:
        with kubenpud(write_settings(tmp_path, text), [other], "other") as daemon:
            daemon.wait_said("READY=1")
            assert Client(own).ask().status == 200
        with kubenpud(write_settings(tmp_path, text + "web.systemd_socket = true\n"), [other], "other") as daemon:
            assert daemon.process.wait(DEADLINE_S) == os.EX_CONFIG
            assert "systemd passed no socket called metrics" in daemon.log
