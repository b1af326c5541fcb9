# SPDX-License-Identifier: Apache-2.0
"""The daemon's loop around a node that is not there: what wakes it, what it tells systemd and who asks, its end."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.config.settings import Settings
from kubenpu.identity import index
from kubenpu.model.errors import ConfigError
from kubenpu.model.view import SourceStatus
from kubenpu.service import daemon
from tests.fakes.daemon_rig import DEADLINE_S, FakeBell, FakeNode, Rig

# ---- beginning and end ----


def test_it_reads_first_serves_then_and_ends_on_sigterm(rig: Rig) -> None:
    def script() -> None:
        rig.hear("READY=1")
        assert rig.node.steps[:3] == ["rescan", "open", "tidy"]
        assert rig.ask("/-/healthy")[0] == 200
        rig.node.wait_for("resolve")

    rig.run(script)
    rig.hear("STOPPING=1")
    assert rig.said.index("STATUS=1 scans") < rig.said.index("READY=1")
    assert "WATCHDOG=1" in rig.said
    assert rig.said.count("STATUS=1 scans") == 1  # told when it changes
    assert rig.watch.closed


def test_sigterm_in_the_middle_of_a_step_waits_for_the_step(rig: Rig) -> None:
    def slow() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        rig.notify("step done")

    rig.node.during["resolve"] = slow
    rig.run(lambda: rig.node.wait_for("resolve"))
    rig.hear("STOPPING=1")
    assert "step done" in rig.said


def test_metrics_that_cannot_be_served_end_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_server: object) -> None:
        raise ConfigError("cannot listen on :10074")

    monkeypatch.setattr(daemon.WebServer, "start", refuse)  # type: ignore[attr-defined]  # where the daemon finds it
    with pytest.raises(ConfigError):
        rig.run(lambda: None)
    assert rig.node.closed
    assert rig.watch.closed
    rig.hear("STOPPING=1")
    assert "READY=1" not in rig.said


# ---- what wakes it ----


def test_the_bell_asks_for_owners_at_once(rig: Rig) -> None:
    bell = rig.node.ringing = FakeBell()

    def script() -> None:
        rig.node.wait_for("resolve")
        for times in (2, 3):
            bell.ring()
            rig.node.wait_for("resolve", times)

    rig.run(script)


def test_a_bell_during_the_step_it_asks_for_is_not_lost(rig: Rig) -> None:
    """The step may have read the counters before the new cgroup was in them: it is done again."""
    bell = rig.node.ringing = FakeBell()

    def ring_once() -> None:
        if rig.node.steps.count("resolve") == 1:
            bell.ring()

    rig.node.during["resolve"] = ring_once
    rig.run(lambda: rig.node.wait_for("resolve", 2))


def test_the_loop_neither_waits_nor_spins_while_the_node_is_busy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell rings on until the node has time to silence it; it wakes the loop once."""
    bell = rig.node.ringing = FakeBell()
    rang: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
    on_bell = daemon.Daemon._on_bell

    def tell(self: daemon.Daemon, loop: asyncio.AbstractEventLoop) -> None:
        on_bell(self, loop)
        rang.put(loop)

    def busy() -> None:
        if rig.node.steps.count("tidy") == 2:
            bell.ring()
            loop = rang.get(timeout=DEADLINE_S)
            for _ in range(10):
                went_round = threading.Event()
                loop.call_soon_threadsafe(went_round.set)
                assert went_round.wait(DEADLINE_S)
            assert rang.empty()

    monkeypatch.setattr(daemon, "TIDY_SECONDS", 0.01)
    monkeypatch.setattr(daemon.Daemon, "_on_bell", tell)
    rig.node.during["tidy"] = busy

    def script() -> None:
        rig.node.wait_for("tidy", 3)
        rig.node.wait_for("resolve", 2)

    rig.run(script)


@pytest.mark.parametrize("same_number", [True, False])
def test_the_daemon_follows_the_node_to_another_bell(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, same_number: bool
) -> None:
    """kubenpu-probe made the pins anew; a scrape may have opened them in any thread, and fds are given out again."""
    monkeypatch.setattr(daemon, "TIDY_SECONDS", 0.01)
    first = rig.node.ringing = FakeBell()

    def change() -> None:
        if rig.node.ringing is first and rig.node.steps.count("tidy") > 1:
            number = first.fd
            if same_number:
                first.close()
            second = FakeBell()
            assert (second.fd == number) is same_number
            rig.node.ringing = second

    def script() -> None:
        rig.node.wait_for("resolve")
        rig.node.wait_for("tidy", 4)
        second = rig.node.ringing
        assert second is not None
        assert second is not first
        second.ring()
        rig.node.wait_for("resolve", 2)

    rig.node.during["tidy"] = change
    rig.run(script)
    if not same_number:
        first.close()


def test_a_node_without_pins_has_no_bell_until_it_has(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "TIDY_SECONDS", 0.01)

    def script() -> None:
        rig.node.wait_for("resolve")
        rig.node.ringing = bell = FakeBell()
        rig.node.wait_for("tidy", rig.node.steps.count("tidy") + 2)
        bell.ring()
        rig.node.wait_for("resolve", 2)

    rig.run(script)


def test_an_owner_is_asked_for_again_when_its_time_has_come(rig: Rig) -> None:
    rig.node.pause = 0.02
    rig.run(lambda: rig.node.wait_for("resolve", 4))


def test_nothing_happens_without_a_reason(rig: Rig) -> None:
    """All owners final: the next things to come are the clock's, seconds away."""
    bell = rig.node.ringing = FakeBell()

    def script() -> None:
        rig.node.wait_for("resolve")
        bell.ring()
        rig.node.wait_for("resolve", 2)

    rig.run(script)
    assert rig.node.steps == ["rescan", "open", "tidy", "resolve", "ask_kubelet", "resolve"]


# ---- what it tells who asks ----


def test_it_is_not_ready_while_a_source_is_down(rig: Rig) -> None:
    down = (
        SourceStatus("counters", False, 0.1, "no counters are pinned. Start kubenpu-probe."),
        SourceStatus("devices", True, 0.1),
        SourceStatus("names", False, 0.1, "cannot write it"),
    )

    def script() -> None:
        rig.hear("READY=1")
        assert rig.ask("/-/ready") == (200, "ready\n")
        rig.node.sources = down
        status, text = rig.ask("/-/ready")
        assert status == 503
        assert text == ("not ready: counters: no counters are pinned. Start kubenpu-probe.; names: cannot write it\n")
        assert 'kubenpu_source_up{source="counters"} 0' in rig.ask("/metrics")[1]
        assert rig.ask("/-/healthy")[0] == 200

    rig.run(script)


@pytest.mark.parametrize("simulated", [True, False])
def test_the_first_page_says_when_the_node_is_simulated(rig: Rig, simulated: bool) -> None:
    rig.node.simulated = simulated

    def script() -> None:
        rig.hear("READY=1")
        assert ("SIMULATED NODE" in rig.ask("/")[1]) is simulated

    rig.run(script)


# ---- the command ----


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "set_up_logging", lambda _level, _format: None)


@pytest.mark.usefixtures("quiet")
def test_command_without_cgroup_2(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "find_mount", lambda _text, _kind: None)
    assert daemon.main(["--config.file", os.devnull]) == 1
    assert "no cgroup version 2 hierarchy is mounted. Boot with systemd.unified" in rig.log.text


@pytest.mark.usefixtures("quiet")
def test_command_with_settings_that_are_none(rig: Rig, tmp_path: Path) -> None:
    """The unit is not started again, and its status line says why."""
    path = tmp_path / "none\nMAINPID=1"
    assert daemon.main(["--config.file", str(path)]) == 78
    assert f"{path} does not exist. Name another" in rig.log.text
    (told,) = all_told(rig)
    assert told.startswith(f"STATUS={tmp_path}/none MAINPID=1 does not exist. Name another")
    assert "\n" not in told


def all_told(rig: Rig) -> list[str]:
    return [rig.told.get_nowait() for _ in range(rig.told.qsize())]


@pytest.mark.usefixtures("quiet")
def test_command_with_a_port_that_is_taken(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts: list[Path] = []

    def node(_settings: Settings, mount: Path) -> FakeNode:
        mounts.append(mount)
        return rig.node

    monkeypatch.setattr(daemon, "Node", node)
    (tmp_path / "cgroup.controllers").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = [f"--web.listen-address=127.0.0.1:{taken.getsockname()[1]}", f"--identity.cgroup-root={tmp_path}"]
        assert daemon.main(["--config.file", os.devnull, *flags]) == 1
    assert mounts == [tmp_path]
    assert rig.node.closed
    assert "cannot listen on 127.0.0.1:" in rig.log.text
    assert [line for line in all_told(rig) if line.startswith("STATUS=cannot listen on 127.0.0.1:")]
    assert "Choose another web.listen_address" in rig.log.text


# ---- reload ----


def test_a_reload_applies_reads_and_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    logging_as: list[tuple[str, str]] = []
    monkeypatch.setattr(daemon, "set_up_logging", lambda *words: logging_as.append(words))
    read = replace(rig.settings, log_level="debug", retention_seconds=5, max_slots=64)
    rig.read_again = lambda: read

    def script() -> None:
        rig.hear("READY=1")
        rig.said.clear()
        scans = rig.node.steps.count("rescan")
        os.kill(os.getpid(), signal.SIGHUP)
        rig.hear("READY=1")
        rig.node.wait_for("rescan", scans + 1)
        assert next(said for said in rig.said if "WATCHDOG" not in said).startswith("RELOADING=1\nMONOTONIC_USEC=")

    rig.run(script)
    assert rig.node.applied == [replace(rig.settings, log_level="debug", retention_seconds=5)]
    assert logging_as == [("debug", "logfmt")]
    assert "applied log.level, ledger.retention_seconds; needs a restart: kernel.max_slots" in rig.log.text


def test_a_reload_that_fails_changes_nothing_and_stays_visible(rig: Rig) -> None:
    answers: list[Settings] = []

    def read() -> Settings:
        if not answers:
            raise ConfigError("kubenpu.toml:3: not valid TOML")
        return answers[0]

    rig.read_again = read

    def script() -> None:
        rig.hear("READY=1")
        os.kill(os.getpid(), signal.SIGHUP)
        while not any("scans; reload failed, what was in force stays: kubenpu.toml:3" in said for said in rig.said):
            rig.said.append(rig.told.get(timeout=DEADLINE_S))
        assert rig.node.applied == []
        answers.append(rig.settings)
        rig.said.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        while not any(said.startswith("STATUS=") and said.endswith(" scans") for said in rig.said):
            rig.said.append(rig.told.get(timeout=DEADLINE_S))

    rig.run(script)
    assert rig.node.applied == [rig.settings]


def test_a_web_configuration_that_is_not_usable_starts_nothing(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("basic_auth_users:\n  alice: secret\n")
    rig.settings = replace(rig.settings, web_config_file=str(tmp_path / "web.yml"))
    with pytest.raises(ConfigError, match=r"web\.yml:2: "):
        rig.run(lambda: None)
    assert rig.node.closed


def test_a_web_configuration_that_breaks_stops_the_whole_reload(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("http_server_config:\n  http2: false\n")
    rig.settings = replace(rig.settings, web_config_file=str(file))
    rig.read_again = lambda: replace(rig.settings, retention_seconds=5)

    def script() -> None:
        rig.hear("READY=1")
        file.write_text("http_server_config:\n  http3: true\n")
        rig.said.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        rig.hear("READY=1")

    rig.run(script)
    assert rig.node.applied == []
    assert "web.yml:2: unknown key 'http3'" in rig.log.text
