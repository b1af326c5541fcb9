# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl doctor` and a daemon that is served in each way the README recommends: an answer is never "down"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest

from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_daemon import find_urls
from kubenpu.cli.doctor_findings import FAIL, OK, WARN, Examination, Finding, Scrape, examine
from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.exporters.scrape import Row
from kubenpu.exporters.web import WebServer
from kubenpu.exporters.web_access_file import AccessFile
from kubenpu.exporters.web_pages import node_routes
from kubenpu.kernel.support import KernelFacts
from tests.fakes.certificates import Authority, Certificate, tls_section
from tests.unit.test_kernel_support import GOOD

BODY = b"""# TYPE kubenpu_build_info gauge
kubenpu_build_info{version="1.2.3"} 1
# TYPE kubenpu_source_up gauge
kubenpu_source_up{source="counters"} 1
"""
USERS = f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n"


def _tells(what: str, code: float, device: str = "a") -> Row:
    return Row("kubenpu_device_visibility", {"device": device, "what": what}, code)


TELLS = _tells("device_memory", 0.5)
LOOKS = Row("kubenpu_source_up", {"source": "clients"}, 1)
INFO = Row("kubenpu_device_info", {"device": "a", "vendor": "i915"}, 1)
ENGINE = Row("kubenpu_device_engine_seconds_total", {"device": "b", "engine": "render"}, 3)
NOT_BY_A = "told by 0 of 1 device; not by a (i915)"


def settings(*flags: str) -> Settings:
    return read_settings(parse_daemon_arguments(flags))


def asked(address: str, web_file: Path, text: str) -> dict[str, Finding]:
    """What doctor says of a daemon that serves at `address` with this web configuration."""
    web_file.write_text(text)
    routes = node_routes("/metrics", lambda _accept: ("text/plain", BODY), str)
    server = WebServer([address], routes, AccessFile(web_file) if text else None)
    server.start()
    try:
        flags = [f"--web.listen-address={server.describe()}", f"--web.config.file={web_file if text else ''}"]
        made = settings(*flags)
        names = ("kubenpud", "sources", "losses", "names")
        found = examine(Examination(made, find_urls(made)), [(name, do) for name, do in CHECKS if name in names])
        return {finding.check: finding for finding in found}
    finally:
        server.stop()


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/metrics.sock"


def test_a_daemon_without_protection_is_read(address: str, web_file: Path) -> None:
    found = asked(address, web_file, "")
    assert (found["kubenpud"].status, found["kubenpud"].found) == (OK, "version 1.2.3")
    assert (found["sources"].status, found["losses"].status) == (OK, OK)


def test_tls_is_read_whoever_signed_it(web_file: Path, issued: Certificate) -> None:
    found = asked("127.0.0.1:0", web_file, tls_section(issued))
    assert (found["kubenpud"].status, found["kubenpud"].found) == (OK, "version 1.2.3")


@pytest.mark.parametrize("protection", ["passwords", "client certificates", "both"])
def test_who_lets_nobody_in_is_not_down(
    address: str, web_file: Path, authority: Authority, issued: Certificate, protection: str
) -> None:
    more = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.cert}\n"
    text = USERS if protection == "passwords" else tls_section(issued, more)
    found = asked(address, web_file, text + (USERS if protection == "both" else ""))
    assert found["kubenpud"].status == WARN
    assert "--url" in found["kubenpud"].remedy
    assert "systemctl start" not in found["kubenpud"].remedy
    for check in ("sources", "losses", "names"):
        assert found[check].status == WARN
        assert found[check].found == "not known: kubenpud lets this user read nothing"


def test_a_password_is_what_is_said_to_be_missing(address: str, web_file: Path) -> None:
    assert "401 Unauthorized" in asked(address, web_file, USERS)["kubenpud"].found


def test_a_socket_without_a_daemon_is_down(tmp_path: Path) -> None:
    made = settings(f"--web.listen-address=unix:{tmp_path}/none.sock")
    (finding,) = examine(Examination(made, find_urls(made)), [(n, do) for n, do in CHECKS if n == "kubenpud"])
    assert finding.status == FAIL
    assert "systemctl start kubenpud" in finding.remedy


@pytest.mark.parametrize(
    ("rows", "status", "found", "remedy"),
    [
        ((), OK, "no driver here tells it", ""),
        ((_tells("device_time", 0),), OK, "no driver here tells it", ""),
        ((_tells("submit", 1),), OK, "no driver here tells it", ""),
        ((TELLS,), WARN, "kubenpu-clients has not run", "enable --now kubenpu-clients"),
        (
            (TELLS, Row("kubenpu_source_up", {"source": "clients"}, 0)),
            WARN,
            "incomplete, late, or never looked at",
            "status kubenpu-clients",
        ),
        ((TELLS, LOOKS, Row("kubenpu_host_memory_bytes", {"device": "a"}, 0)), OK, "told by 1 of 1 device", ""),
        ((TELLS, LOOKS, Row("kubenpu_memory_bytes", {"device": "b"}, 0), INFO), OK, NOT_BY_A, "README.md"),
        ((TELLS, LOOKS), OK, "told by 0 of 1 device; not by a (-)", "README.md"),
        (
            (*(_tells("device_time", 1, device) for device in "abc"), LOOKS, INFO, ENGINE),
            *(OK, "told by 1 of 3 devices; not by a (i915), c (-)", "README.md"),
        ),
    ],
)
def test_device_time(rows: tuple[Row, ...], status: str, found: str, remedy: str) -> None:
    finding = device_time(rows, GOOD)
    assert (finding.status, finding.found) == (status, found)
    assert remedy in finding.remedy


@pytest.mark.parametrize(("rows", "status"), [((), OK), ((TELLS,), WARN), ((TELLS, LOOKS), WARN)])
def test_device_time_needs_the_kernels_btf(rows: tuple[Row, ...], status: str) -> None:
    finding = device_time(rows, replace(GOOD, btf=False))
    assert finding.status == status
    assert ("BTF" in finding.found, "BTF" in finding.remedy) == (status == WARN, status == WARN)


def device_time(rows: tuple[Row, ...], facts: KernelFacts) -> Finding:
    made = settings()
    node = Examination(made, find_urls(made))
    node.__dict__.update(scrape=Scrape("", rows), facts=facts)
    (finding,) = examine(node, [(name, do) for name, do in CHECKS if name == "device time"])
    return finding


@pytest.mark.parametrize(
    ("flags", "urls"),
    [
        (["--web.listen-address=:1"], ["http://127.0.0.1:1/metrics"]),
        (
            ["--web.listen-address=[::1]:1", "--web.listen-address=unix:/s"],
            ["unix:/s:/metrics", "http://[::1]:1/metrics"],
        ),
        (
            ["--web.listen-address=h:1", "--web.config.file=/w", "--web.telemetry-path=/x"],
            ["https://h:1/x", "http://h:1/x"],
        ),
        (
            ["--web.systemd-socket", "--web.listen-address=h:1"],
            ["unix:/run/kubenpu/metrics.sock:/metrics", "http://127.0.0.1:10074/metrics"],
        ),
    ],
)
def test_where_it_is_asked(flags: list[str], urls: list[str]) -> None:
    assert find_urls(settings(*flags)) == urls
