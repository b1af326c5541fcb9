# SPDX-License-Identifier: Apache-2.0
"""kubenpud with a web configuration file, and what a reload does with this and all other settings."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import threading
import time
from pathlib import Path
from statistics import median

import pytest
import yaml

from tests.fakes.certificates import Authority
from tests.fakes.kubenpud import DEADLINE_S, kubenpud, protected, write_settings
from tests.fakes.sim_tally import wait_until
from tests.fakes.web_client import Client, basic, free_port

SCRAPE_TIMEOUT_S = 10  # of Prometheus, when nothing is configured
SECRET = basic("prometheus", "secret")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    client = authority.issue("prometheus")
    context.load_cert_chain(client.cert, client.key)
    return context


# ---- R23: web configuration ----


def test_protected_daemon(authority: Authority, trusting: ssl.SSLContext, tmp_path: Path) -> None:
    settings, web, port = protected(tmp_path, authority)
    stranger = ssl.create_default_context(cafile=str(authority.cert))
    with kubenpud(settings) as daemon:
        daemon.wait_said("READY=1")
        first = Client(port).certificate()
        assert Client(port, trusting).ask(headers=SECRET).status == 200
        assert Client(port, trusting).ask().status == 401
        with pytest.raises(OSError, match=r"(?i)certificate|reset|pipe|closed|eof"):
            Client(port, stranger).ask(headers=SECRET)
        with pytest.raises((OSError, http.client.HTTPException)):
            Client(port).ask(headers=SECRET)
        renew(web, authority)
        assert wait_until(lambda: Client(port).certificate() != first, DEADLINE_S)
        assert Client(port, trusting).ask(headers=SECRET).status == 200
        web.write_text(web.read_text() + "no_such_key: 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_logged(f"reload failed, what was in force stays: {web}:8: unknown key 'no_such_key'")
        assert Client(port, trusting).ask(headers=SECRET).status == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            Client(port).ask(headers=SECRET)


def renew(web: Path, authority: Authority) -> None:
    """Another certificate in the files that the web configuration names."""
    tls = yaml.safe_load(web.read_text())["tls_server_config"]
    made = authority.issue("renewed")
    made.cert.rename(tls["cert_file"])
    made.key.rename(tls["key_file"])


def test_broken_web_configuration_at_the_start(authority: Authority, tmp_path: Path) -> None:
    settings, web, port = protected(tmp_path, authority)
    web.write_text(web.read_text() + "no_such_key: 1\n")
    with kubenpud(settings) as daemon:
        assert daemon.process.wait(DEADLINE_S) == os.EX_CONFIG
        assert f"{web}:8: unknown key 'no_such_key'" in daemon.log
    with pytest.raises(ConnectionRefusedError):
        Client(port).ask()


def test_wrong_passwords_starve_nobody(authority: Authority, trusting: ssl.SSLContext, tmp_path: Path) -> None:
    """200 different ones, as fast as they are refused; the good client's first question comes in the middle of it."""
    settings, _, port = protected(tmp_path, authority)
    statuses: list[int] = []

    def guess(first: int) -> None:
        for number in range(first, 200, 8):
            statuses.append(Client(port, trusting).ask(headers=basic("prometheus", str(number))).status)

    with kubenpud(settings) as daemon:
        daemon.wait_said("READY=1")
        guessers = [threading.Thread(target=guess, args=(first,)) for first in range(8)]
        for guesser in guessers:
            guesser.start()
        assert wait_until(lambda: len(statuses) > 10, DEADLINE_S)
        took = []
        while any(guesser.is_alive() for guesser in guessers):
            asked = time.monotonic()
            assert Client(port, trusting).ask(headers=SECRET).status == 200
            took.append(time.monotonic() - asked)
        for guesser in guessers:
            guesser.join(DEADLINE_S)
    assert len(statuses) == 200
    assert set(statuses) <= {401, 429}
    assert max(took) < SCRAPE_TIMEOUT_S
    assert median(took) < 1


# ---- reload ----


def test_reload_applies_what_it_can_and_says_what_not(tmp_path: Path) -> None:
    port = free_port()
    text = f'web.listen_address = ["localhost:{port}"]\n'
    file = write_settings(tmp_path, text)
    with kubenpud(file) as daemon:
        daemon.wait_said("READY=1")
        assert "level=debug" not in daemon.log
        write_settings(tmp_path, text + 'log.level = "debug"\nlog.format = "json"\nkernel.max_slots = 64\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_said("RELOADING=1\nMONOTONIC_USEC=")
        daemon.wait_said("READY=1", times=2)
        assert '"msg": "reload: applied log.level, log.format; needs a restart: kernel.max_slots"' in daemon.log
        assert Client(port).ask().status == 200
        daemon.wait_logged('"level": "debug"')


def test_broken_settings_at_reload_change_nothing(tmp_path: Path) -> None:
    port = free_port()
    text = f'web.listen_address = ["localhost:{port}"]\n'
    file = write_settings(tmp_path, text)
    with kubenpud(file) as daemon:
        daemon.wait_said("READY=1")
        for broken, problem in (
            ("log.level = [", "not valid TOML"),
            ('log.level = "debug"\nkernel.max_slots = "many"', "kernel.max_slots: expected a whole number"),
        ):
            write_settings(tmp_path, text + broken)
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_logged(problem)
        daemon.wait_said("STATUS=")
        daemon.wait_said("reload failed, what was in force stays")
        assert "level=debug" not in daemon.log
        assert Client(port).ask().status == 200
        write_settings(tmp_path, text)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_logged("no setting that can be applied changed")


def test_reload_reads_driver_tables_again_and_follows_their_directory(tmp_path: Path) -> None:
    port, tables = free_port(), tmp_path / "tables"
    text = f'web.listen_address = ["localhost:{port}"]\n'
    tables.mkdir()
    (tables / "broken.toml").write_text("name = 1\n")
    with kubenpud(write_settings(tmp_path, text)) as daemon:
        daemon.wait_said("READY=1")
        assert "broken.toml" not in daemon.log
        write_settings(tmp_path, text + f'devices.drivers_directory = "{tables}"\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_logged("applied devices.drivers_directory")
        daemon.wait_logged("driver table left out")
        assert "broken.toml" in daemon.log
