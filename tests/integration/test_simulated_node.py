# SPDX-License-Identifier: Apache-2.0
"""The simulated node: that it is exact, that it says what it is, and that nothing of it stays. Needs root."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kubenpu.devices.discovery import discover
from kubenpu.devices.tables import load_tables, rule_kinds
from kubenpu.exporters.scrape import Row, fetch
from kubenpu.identity.cgroup import parse_path
from kubenpu.model.errors import ConfigError, SourceError
from kubenpu.model.identity import PathKind
from kubenpu.model.kinds import KINDS, Kind
from tests.fakes import run_here
from tests.fakes.own_service import DAEMON_CGROUP, only_one, require_free_port
from tests.fakes.sim_cgroups import cgroup2_mount
from tests.fakes.sim_metrics import free_url
from tests.fakes.sim_parity import compare, find_faults
from tests.fakes.sim_plan import DEVICES, PODS, WORKLOADS
from tests.fakes.sim_sysfs import write_sysfs
from tests.fakes.sim_tally import Tally, TallyFile, pause_all, wait_until
from tests.fakes.simulated_node import NAME, workload_command

ROOT = Path(__file__).parents[2]
INSTALLED_PINS = Path("/sys/fs/bpf/kubenpu")
DEADLINE_S = 60.0


def places() -> tuple[Path, ...]:
    """Everything a simulated node makes outside its processes."""
    return (Path("/run") / NAME, Path("/sys/fs/bpf") / NAME, cgroup2_mount() / NAME)


def left_over() -> list[Path]:
    return [place for place in places() if place.exists()]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.fakes.simulated_node", *arguments]


@pytest.fixture
def port() -> int:
    return urlsplit(free_url()).port or 0


@contextmanager
def started(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A simulated node without an end, from the moment its workloads have names. Its output is the test's."""
    process = subprocess.Popen(command("--port", str(port)), cwd=ROOT)
    try:
        assert wait_until(lambda: process.poll() is not None or counted(port), DEADLINE_S)
        assert process.poll() is None
        yield process
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def rows(port: int) -> list[Row]:
    try:
        return fetch(f"http://127.0.0.1:{port}/metrics")
    except SourceError:
        return []


def counted(port: int) -> bool:
    """Whether every pod has a series."""
    return {row.labels["pod"] for row in rows(port) if row.name == "kubenpu_ioctl_total"} == {pod.name for pod in PODS}


def kubenpuctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "kubenpu.cli.main", *arguments]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


# ---- the whole ----


def test_counts_are_exact_and_nothing_stays(port: int) -> None:
    before = INSTALLED_PINS.exists()
    done = subprocess.run(
        command("--seconds", "3", "--port", str(port)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SIMULATED NODE") == 2
    assert "Equal, call by call and kind by kind." in done.stdout
    for workload in WORKLOADS:
        assert workload.title in done.stdout
    assert left_over() == []
    assert INSTALLED_PINS.exists() == before


def test_every_output_says_that_it_is_simulated(port: int) -> None:
    with started(port):
        assert [row.value for row in rows(port) if row.name == "kubenpu_simulated"] == [1]
        run_directory, *_ = places()
        bus = ("--bus", f"unix:path={run_directory}/bus")
        pods = kubenpuctl("pods", "--json", *bus)
        devices = kubenpuctl("devices", "--json", "--sysfs", str(run_directory / "sys"), *bus)
        top = kubenpuctl("top", "--once", *bus)
        watch = kubenpuctl("watch", "--json", "--count", "1", *bus)
        doctor = kubenpuctl(
            "doctor",
            "--json",
            "--config.file",
            str(run_directory / "kubenpu.toml"),
            "--url",
            f"http://127.0.0.1:{port}/metrics",
        )
    for answer in (pods, devices, top, watch, doctor):
        assert (answer.returncode, "simulated node" in answer.stderr) == (0, True), answer.stdout + answer.stderr
    assert top.stdout.startswith("SIMULATED NODE")
    assert all(json.loads(line)["simulated"] for line in watch.stdout.splitlines())
    assert {json.loads(line)["pod"] for line in watch.stdout.splitlines()} == {*(pod.name for pod in PODS), None}
    assert all(entry["simulated"] and entry["counts"]["calls"] for entry in json.loads(devices.stdout))
    assert {entry["pod"] for entry in json.loads(pods.stdout)} == {*(pod.name for pod in PODS), None}
    assert [entry["address"] for entry in json.loads(devices.stdout)] == sorted(d.address for d in DEVICES)
    assert {"hook drm_ioctl", "counters", "runtime"} <= {
        entry["check"] for entry in json.loads(doctor.stdout) if entry["status"] == "ok"
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_everything(port: int, number: signal.Signals) -> None:
    with started(port) as process:
        assert len(left_over()) == 3
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    assert left_over() == []
    assert rows(port) == []


def test_what_a_killed_one_left_is_removed_by_the_next(port: int) -> None:
    with started(port) as process:
        process.kill()
        process.wait(DEADLINE_S)
        assert len(left_over()) == 3
        assert rows(port) != []  # its kubenpud still holds the port
    again = subprocess.run(
        command("--seconds", "1", "--port", str(port)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert left_over() == []


def kill_kubenpud(name: str) -> None:
    procs = cgroup2_mount() / name / DAEMON_CGROUP / "cgroup.procs"
    os.kill(int(procs.read_text()), signal.SIGKILL)


def test_it_ends_when_kubenpud_is_dead(port: int) -> None:
    with subprocess.Popen(
        command("--port", str(port)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any("goes on until" in line for line in process.stdout)
        kill_kubenpud(NAME)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "simulated node: kubenpud ended with exit code -9" in err
    assert left_over() == []


def test_a_second_one_is_refused(port: int) -> None:
    with only_one(NAME):
        second = subprocess.run(
            command("--port", str(port)), cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
    assert second.returncode == 1
    assert f"another {NAME} is running" in second.stderr


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            command("--port", str(port)), cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
    assert refused.returncode == 1
    assert f"port {port} cannot be used" in refused.stderr
    assert left_over() == []


# ---- its parts ----


def test_steps_are_what_the_driver_tables_say(tmp_path: Path) -> None:
    tables = load_tables(Path("/nonexistent"))
    write_sysfs(tmp_path / "sys", DEVICES)
    vendors = {device.address: device.vendor for device in discover(tmp_path / "sys", tables.tables).devices}
    assert vendors.keys() == {device.address for device in DEVICES}
    assert None in vendors.values()
    for workload in WORKLOADS:
        table = tables.by_name(vendors[workload.device.address])
        kinds = rule_kinds(tables.core, table.interfaces[0].ioctls if table else ())
        assert [Kind(kinds[step.nr]) for step in workload.steps] == [step.kind for step in workload.steps]
    assert {step.kind for workload in WORKLOADS for step in workload.steps} == set(KINDS)
    assert any(step.failing for workload in WORKLOADS for step in workload.steps)


def test_cgroups_are_those_of_pods() -> None:
    for workload in WORKLOADS:
        claim = parse_path(f"/{NAME}/{workload.cgroup}")
        if workload.pod is None:
            assert claim.unit == workload.title
        else:
            assert claim.kind is PathKind.POD_CONTAINER
            assert claim.pod_uid == workload.pod.uid
            assert claim.container_id == workload.pod.container_id(workload.container)
            assert (claim.driver, claim.qos) == (workload.pod.cgroup_driver, workload.pod.qos)


def test_workload_counts_itself(tmp_path: Path) -> None:
    tally = TallyFile(tmp_path / "tally")
    process = subprocess.Popen(workload_command(WORKLOADS[0], tally.path), stdout=subprocess.PIPE, text=True)
    assert wait_until(lambda: sum(tally.read().calls) > 20, DEADLINE_S)
    assert pause_all([tally])
    paused = tally.read()
    assert pause_all([tally])  # another pause is a new one, and no call was made in between
    assert tally.read() == paused
    tally.resume()
    assert wait_until(lambda: tally.read() != paused, DEADLINE_S)
    tally.ask_stop()
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    said = json.loads(out)
    assert tally.read() == Tally(
        tuple(said["calls"]), tuple(said["errors"]), said["wait_within_ns"], said["wait_around_ns"]
    )
    assert 0 < said["wait_within_ns"] < said["wait_around_ns"]
    assert said["errors"][Kind.WAIT] > 0
    tally.close()


@pytest.mark.parametrize("steps", [[], ["0x40:1:1"], ["256:1:1:0"], ["0x40:7:1:0"], ["0x40:1:1:2"], ["0x40:1:1:0x"]])
def test_workload_refuses_nonsense(tmp_path: Path, steps: list[str]) -> None:
    tally = TallyFile(tmp_path / "tally")
    words = workload_command(WORKLOADS[0], tally.path)[:5] + steps
    assert subprocess.run(words, capture_output=True, check=False, timeout=DEADLINE_S).returncode == 2
    tally.close()


def metrics_of(tally: Tally) -> list[Row]:
    """What kubenpud would export for the first workload when it counted exactly `tally`."""
    workload = WORKLOADS[0]
    assert workload.pod is not None
    device = {"device": workload.device.address, "vendor": "v"}
    pod = {"pod": workload.pod.name, "namespace": workload.pod.namespace, "container": workload.container, **device}
    found = [Row("kubenpu_ioctl_wait_seconds_total", pod, tally.wait_within_ns / 1e9)]
    for kind, calls, errors in zip(KINDS, tally.calls, tally.errors, strict=True):
        found += [
            Row("kubenpu_ioctl_total", {**pod, "kind": kind.label}, calls),
            Row("kubenpu_ioctl_errors_total", {**pod, "kind": kind.label}, errors),
            Row("kubenpu_device_ioctl_total", {**device, "kind": kind.label}, calls),
        ]
    balance = Row("kubenpu_attribution_imbalance", {"device": workload.device.address}, 0)
    return [*found, balance, Row("kubenpu_events_dropped_total", {"reason": "slots_full"}, 0)]


TALLY = Tally((5, 4, 3, 2, 9, 1, 0), (1, 0, 0, 0, 2, 0, 0), 1_000_000_001, 1_000_000_002)


def verdict(found: list[Row]) -> bool:
    tallies = [(WORKLOADS[0], TALLY)]
    return not find_faults(tallies, found) and all(each.equal for each in compare(tallies, found))


def test_comparison_accepts_what_is_equal() -> None:
    assert verdict(metrics_of(TALLY))


@pytest.mark.parametrize("difference", [1, -1])
@pytest.mark.parametrize("number", range(len(metrics_of(TALLY))))
def test_comparison_sees_every_single_difference(number: int, difference: int) -> None:
    found = metrics_of(TALLY)
    step = difference * 3e-9 if "seconds" in found[number].name else difference
    found[number] = replace(found[number], value=found[number].value + step)
    assert not verdict(found)


def test_comparison_needs_every_series() -> None:
    found = metrics_of(TALLY)
    for number, row in enumerate(found):
        if row.value or row.name in ("kubenpu_attribution_imbalance", "kubenpu_events_dropped_total"):
            assert not verdict(found[:number] + found[number + 1 :]), row


def test_port_check_knows_free_from_taken() -> None:
    require_free_port(urlsplit(free_url()).port or 0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError):
        require_free_port(taken.getsockname()[1])


def test_the_real_service_runs_where_there_are_devices(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    write_sysfs(tmp_path / "some", DEVICES)
    assert not run_here.has_accelerators(tmp_path / "none")
    assert run_here.has_accelerators(tmp_path / "some")


@contextmanager
def real_service(port: int) -> Iterator[subprocess.Popen[str]]:
    """`make run` where there are devices, serving; nothing of it is left."""
    script = f"import sys; from tests.fakes import run_here; run_here.has_accelerators = lambda: True; sys.argv[1:] = ['--port', '{port}']; sys.exit(run_here.main())"  # noqa: E501
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert wait_until(lambda: process.poll() is not None or rows(port) != [], DEADLINE_S)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    own = (Path("/run") / run_here.NAME, Path("/sys/fs/bpf") / run_here.NAME, cgroup2_mount() / run_here.NAME)
    assert [place for place in own if place.exists()] == []


def test_the_real_service_starts_and_goes(port: int) -> None:
    with real_service(port) as process:
        assert [row.value for row in rows(port) if row.name == "kubenpu_simulated"] == [0]
    assert process.returncode == 0


def test_the_real_service_ends_when_kubenpud_is_dead(port: int) -> None:
    with real_service(port) as process:
        kill_kubenpud(run_here.NAME)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert "make run: kubenpud ended with exit code -9" in err
