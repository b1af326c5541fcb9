# SPDX-License-Identifier: Apache-2.0
"""kubenpuctl asks a real D-Bus server: as any user, of many workloads, and when something is in the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.model.errors import SourceError
from kubenpu.model.usage import UsageRow
from tests.fakes.dbus_node import IGPU, POD, VIEW, FakeNode, counts, many
from tests.fakes.private_bus import DEADLINE_S, NOBODY, PrivateBus, Serving, eventually
from tests.fakes.sim_plan import DEVICES
from tests.fakes.sim_sysfs import write_sysfs

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}
# As another user, who may have no right to read a developer's Python: all is imported before.
AS_NOBODY = f"""
import os, sys
import kubenpu.cli.pods, kubenpu.cli.main, kubenpu.exporters.dbus_client
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(kubenpu.cli.main.main())
"""
NO_POLICY = '<busconfig><policy context="default"><allow own="io.kubenpu"/></policy></busconfig>'


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kubenpu.cli.main", *words]


def kubenpuctl(*words: str, nobody: bool = False) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", AS_NOBODY, *words] if nobody else command(*words)
    return subprocess.run(
        program, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=DEADLINE_S, cwd="/"
    )


def test_every_user_may_ask(bus: PrivateBus, served: Serving) -> None:
    done = kubenpuctl("pods", "--json", "--bus", bus.address, nobody=True)
    assert (done.returncode, done.stderr.count("confirmed")) == (0, 1), done.stderr
    rows = {(row["kind"], row["device"]): row for row in json.loads(done.stdout)}
    assert len(rows) == len(VIEW.usage)
    web = rows["pod", IGPU]
    assert (web["pod"], web["calls"]["submit"], web["wait_seconds"], web["since"]) == ("web-0", 100, 1.5, 1700000100)
    assert "submit" not in rows["pod", "npu.0"]["calls"]  # a doorbell: nobody can know


def test_all_pages_are_listed(bus: PrivateBus, served: Serving) -> None:
    served.node.shown = many(1201)
    served.changed()
    done = kubenpuctl("pods", "--bus", bus.address)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 1202)
    assert len({line.split()[1] for line in lines[1:]}) == 1201
    few = kubenpuctl("pods", "--bus", bus.address, "-n", "team-001", "--json")
    assert {row["namespace"] for row in json.loads(few.stdout)} == {"team-001"}
    assert json.loads(kubenpuctl("pods", "--bus", bus.address, "--pod", "nobody", "--json").stdout) == []


@pytest.mark.parametrize("words", [("pods",), ("watch",), ("top", "--once")])
def test_what_is_in_the_way_is_said(bus: PrivateBus, words: tuple[str, ...]) -> None:
    stopped = kubenpuctl(*words, "--bus", bus.address)
    assert (stopped.returncode, stopped.stdout) == (3, "")
    assert "systemctl start kubenpud" in stopped.stderr
    none = kubenpuctl(*words, "--bus", "unix:path=/nonexistent/bus")
    assert (none.returncode, none.stdout) == (3, "")
    assert "no message bus at unix:path=/nonexistent/bus" in none.stderr
    nonsense = kubenpuctl(*words, "--bus", "tcp:host=example.org")
    assert (nonsense.returncode, nonsense.stderr.count("\n")) == (3, 1)


def test_a_bus_without_our_policy(tmp_path: Path) -> None:
    policy = tmp_path / "none.conf"
    policy.write_text(NO_POLICY)
    with PrivateBus(tmp_path, f"{os.getpid()}-none", policy) as bus, Serving(FakeNode(), bus.address) as serving:
        eventually(lambda: serving.node.notes == [""])
        refused = kubenpuctl("pods", "--bus", bus.address, nobody=True)
    assert refused.returncode == 3
    assert "io.kubenpu.conf and run: systemctl reload dbus" in refused.stderr


def test_a_bus_that_this_user_may_not_use(tmp_path: Path) -> None:
    (tmp_path / "bus").touch(mode=0o600)
    refused = kubenpuctl("pods", "--bus", f"unix:path={tmp_path}/bus", nobody=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "may not use the message bus" in refused.stderr


def report(bus: PrivateBus) -> subprocess.Popen[str]:
    words = command("report", "--bus", bus.address)
    return subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def test_a_report_whose_bus_is_lost(bus: PrivateBus, served: Serving) -> None:
    hold = served.node.hold_usage = threading.Event()
    with report(bus) as asking:
        eventually(lambda: any(session.slow for session in served.sessions))
        bus.stop()
        _, err = asking.communicate(timeout=DEADLINE_S)
    hold.set()
    assert (asking.returncode, err.count("\n")) == (3, 1)
    assert "the message bus closed the connection" in err
    assert "or name its --database" in err


def test_a_report_that_kubenpud_refuses(bus: PrivateBus, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_by: str, _since: float, _until: float, _page: range) -> tuple[list[UsageRow], int]:
        raise SourceError("no history is kept")

    monkeypatch.setattr(node, "usage", refuse)
    with Serving(node, bus.address):
        eventually(lambda: node.notes == [""])
        with report(bus) as asking:
            _, err = asking.communicate(timeout=DEADLINE_S)
    assert asking.returncode == 1
    assert "no history is kept" in err
    assert "--database" not in err


def test_devices_wait_for_nobody(bus: PrivateBus, served: Serving, tmp_path: Path) -> None:
    write_sysfs(tmp_path / "sys", DEVICES)
    served.node.shown = replace(VIEW, simulated=True)
    served.changed()
    words = ("devices", "-o", "wide", "--sysfs", str(tmp_path / "sys"), "--bus", bus.address)
    shown = kubenpuctl(*words)
    assert "WAIT SECONDS" in shown.stdout.splitlines()[0]
    served.node.hold = threading.Event()
    served.changed()
    alone = kubenpuctl(*words)
    served.node.hold.set()
    assert (alone.returncode, "WAIT SECONDS" in alone.stdout) == (0, False)
    assert alone.stdout.count("\n") == shown.stdout.count("\n")


# ---- watch ----


@contextlib.contextmanager
def watching(bus: PrivateBus, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("watch", "--interval", "1", "--bus", bus.address, *words),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def submit(node: FakeNode, number: int) -> None:
    more = tuple(replace(u, counts=counts(number)) if (u.owner, u.device) == (POD, IGPU) else u for u in VIEW.usage)
    node.shown = replace(VIEW, usage=more)


def has_begun(process: subprocess.Popen[str]) -> bool:
    """When it has its first sample it says what is to be said of that."""
    assert process.stderr is not None
    return process.stderr.readline().endswith("belong to pods that no container runtime has confirmed\n")


def test_watch_outlives_kubenpud(bus: PrivateBus, node: FakeNode) -> None:
    submit(node, 100)
    with contextlib.ExitStack() as stack:
        with Serving(node, bus.address) as serving:
            eventually(lambda: node.notes == [""])
            process = stack.enter_context(watching(bus, "--json", "--count", "2"))
            assert process.stdout is not None
            assert process.stderr is not None
            assert has_begun(process)
            submit(node, 150)
            serving.changed()
            first = json.loads(process.stdout.readline())
        assert process.stderr.readline().startswith("kubenpuctl: reconnecting: ")
        submit(node, 400)
        with Serving(node, bus.address):
            second = json.loads(process.stdout.readline())
            assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == "kubenpuctl: connected again\n"
    assert first["calls"]["submit"] == 150
    assert first["submits_per_second"] == pytest.approx(50 / first["seconds"], rel=0.01)
    assert second["submits_per_second"] == pytest.approx(250 / second["seconds"], rel=0.01)
    assert second["seconds"] > first["seconds"]


def test_watch_ends_quietly(bus: PrivateBus, served: Serving) -> None:
    with watching(bus) as process:
        assert has_begun(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (130, "")
        assert "Traceback" not in err


def test_watch_ends_with_its_reader(bus: PrivateBus, served: Serving) -> None:
    with watching(bus) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert has_begun(process)
        process.stdout.close()
        submit(served.node, 1000)
        served.changed()
        assert process.wait(DEADLINE_S) == 0
        assert "Traceback" not in process.stderr.read()
