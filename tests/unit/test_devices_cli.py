# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl devices` and `drivers`: what is printed, where, and with which exit code."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from kubenpu.cli import output
from kubenpu.cli.main import main
from kubenpu.exporters.dbus_client import NodeRow
from kubenpu.model.errors import SourceError
from tests.fakes.fake_client import NODE, SIMULATED, FakeClient, counts, device
from tests.unit.test_devices import IGPU, SAMPLES, FakeSysfs

HEADER = "DRIVER  PCI ID  ADDRESS  NODES  NUMA  VENDOR\n"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


def kubenpuctl(*words: str | Path) -> int:
    given = [*map(str, words)]
    return main(given if "--drivers-dir" in words else [*given, "--drivers-dir", "/nonexistent"])


def test_devices_prints_the_documented_table(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    uevent = ["DRIVER=i915", "PCI_CLASS=30000", "PCI_ID=8086:5917", "PCI_SLOT_NAME=0000:00:02.0"]
    sysfs.add_device(IGPU, uevent, "pci", numa_node="0")
    sysfs.add_node(IGPU, "card1", "226:1")
    sysfs.add_node(IGPU, "renderD128", "226:128")
    assert kubenpuctl("devices", "--sysfs", sysfs.root) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        "DRIVER  PCI ID     ADDRESS       NODES          NUMA  VENDOR\n"
        "i915    8086:5917  0000:00:02.0  226:1,226:128  0     i915\n"
    )
    assert printed.err == ""


def test_devices_wide_and_absent_values(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add_device("devices/platform/rknn", SAMPLES["11 rocket, parent of accel0"], "platform")
    sysfs.add_node("devices/platform/rknn", "accel0", "261:0")
    assert kubenpuctl("devices", "-o", "wide", "--sysfs", sysfs.root) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "DRIVER",
        "PCI",
        "ID",
        "ADDRESS",
        "NODES",
        "NUMA",
        "VENDOR",
        "SUBSYSTEM",
        "SUBMITS",
        "MEMORY",
        "WAITS",
        *("DEVICE", "TIME", "DEVICE", "MEMORY"),
        "MODEL",
        "UUID",
        "KFD",
        "ID",
        "PARTITIONS",
        "SYSFS",
    ]
    path = f"{sysfs.root}/devices/platform/rknn"
    seen = ["always", "-", "-", "partly", "never"]
    assert row.split() == ["-", "-", "rknn", "261:0", "-", "rocket", "accel", *seen, *["-"] * 4, path]


def test_devices_json(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci", numa_node="-1")
    sysfs.add_node(IGPU, "card0", "226:0")
    assert kubenpuctl("devices", "--json", "--sysfs", sysfs.root) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "driver": "i915",
            "pci_id": "8086:9A49",
            "address": "0000:00:02.0",
            "nodes": [{"name": "dri/card0", "major": 226, "minor": 0}],
            "numa_node": None,
            "vendor": "i915",
            "subsystem": "drm",
            "visibility": "always",
            "submit_visibility": "always",
            "memory_visibility": None,
            "wait_visibility": None,
            "device_time_visibility": "always",
            "device_memory_visibility": "partly",
            "model": None,
            "uuid": None,
            "kfd_gpu_id": None,
            "partition_of": None,
            "instances": [],
            "sysfs_path": str(sysfs.root / IGPU),
            "counts": None,
            "simulated": False,
        }
    ]


@pytest.mark.parametrize(("words", "out"), [((), HEADER), (("--json",), "[]\n")])
def test_no_devices_is_no_failure(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], out: str
) -> None:
    assert kubenpuctl("devices", "--sysfs", sysfs.root, *words) == 0
    printed = capsys.readouterr()
    assert printed.out == out
    assert f"{sysfs.root}/class/drm" in printed.err and "character devices" in printed.err


def test_no_sysfs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubenpuctl("devices", "--json", "--sysfs", tmp_path / "nowhere") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "nowhere is not a directory" in printed.err


def test_a_simulated_node_says_so(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    (sysfs.root / "kubenpu-simulated").touch()
    sysfs.add_device("devices/platform/vgem", SAMPLES["15 vgem in 6.12"])
    sysfs.add_node("devices/platform/vgem", "card0", "226:0")
    assert kubenpuctl("devices", "--json", "--sysfs", sysfs.root) == 0
    printed = capsys.readouterr()
    assert isinstance(json.loads(printed.out), list)
    assert "simulated node: these devices do not exist" in printed.err


def test_terminal_escapes_are_shown_not_obeyed(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add_device("devices/platform/npu\x1b[2J\u202e", b"DRIVER=evil\x1b]0;owned\x07\xff\n")
    sysfs.add_node("devices/platform/npu\x1b[2J\u202e", "accel0", "261:0")
    assert kubenpuctl("devices", "-o", "wide", "--sysfs", sysfs.root) == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert r"evil\x1b]0;owned\x07\xff" in out and r"npu\x1b[2J\u202e" in out


def test_a_bad_table_of_the_operator_is_reported(
    sysfs: FakeSysfs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("colour = 1")
    assert kubenpuctl("devices", "--sysfs", sysfs.root, "--drivers-dir", tmp_path) == 0
    assert f"{tmp_path}/bad.toml" in capsys.readouterr().err
    assert kubenpuctl("drivers", "--drivers-dir", tmp_path) == 1
    printed = capsys.readouterr()
    assert "i915" in printed.out and f"{tmp_path}/bad.toml" in printed.err


def test_what_may_surprise_is_said_by_drivers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.toml\x1b[2J~").touch()
    assert kubenpuctl("drivers", "--drivers-dir", tmp_path) == 0
    assert r"old.toml\x1b[2J~ is ignored" in capsys.readouterr().err


def test_drivers_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubenpuctl("drivers") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["DRIVER", "SUBSYSTEM", "SUBMITS", "IOCTLS", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == sorted(line.split()[0] for line in lines[1:])
    assert next(line.split()[2] for line in lines if line.startswith("amdgpu ")) == "partly"
    assert kubenpuctl("drivers", "-o", "wide") == 0
    wide = capsys.readouterr().out
    assert "virtio-pci,virtio-mmio,virtio_gpu" in wide
    rows = {line.split()[0]: line for line in wide.splitlines()}
    column = re.split(r"\s{2,}", rows["DRIVER"]).index("READS")
    read = {name: re.split(r"\s{2,}", rows[name])[column] for name in ("i915", "xe", "nvidia")}
    assert read == {"i915": "-", "xe": "count", "nvidia": "envelope,kind"}


def test_drivers_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubenpuctl("drivers", "--json") == 0
    tables = {table["driver"]: table for table in json.loads(capsys.readouterr().out)}
    assert {"drm", "i915", "virtio_gpu", "vgem"} <= tables.keys()
    assert tables["intel_vpu"]["subsystem"] == "accel"
    assert tables["i915"]["visibility"] == tables["i915"]["submit_visibility"] == "always"
    assert tables["i915"]["memory_visibility"] is None
    assert tables["vgem"]["submit_visibility"] == "none"
    assert tables["vfio-pci"]["interfaces"][0]["nodes"][0]["shared"] is True
    submit = {"name": "DRM_IOCTL_I915_GEM_EXECBUFFER2_WR", "type": 0x64, "nr": 0x69, "kind": "submit"}
    assert {**submit, "interface": 0} in tables["i915"]["ioctls"]
    xe = tables["xe"]
    assert (xe["device_time_visibility"], xe["device_memory_visibility"]) == ("partly", "always")
    nvidia = tables["nvidia"]
    assert (nvidia["subsystem"], nvidia["visibility"], nvidia["memory_visibility"]) == ("char", "never", "always")
    assert [each["subsystem"] for each in nvidia["interfaces"]] == ["char", "drm"]
    assert {"devname": "nvidiactl", "major": 195, "minors": [255, 255]} in nvidia["interfaces"][0]["nodes"]
    calls = {call["name"]: call for call in nvidia["ioctls"]}
    assert calls["NV_ESC_RM_ALLOC"]["argument"]["kinds"]["62"] == "alloc"
    assert (tables["xe"]["work"], "work" in nvidia) == ("buffers", False)
    assert calls["NV_ESC_IOCTL_XFER_CMD"]["argument"] == {
        "decides": "envelope", "size": 16, "offset": 0, "width": 4, "length": 4, "pointer": 8,
    }  # fmt: skip
    assert tables["hailo"]["ioctls"][0]["release"] == {"module": "hailo_pci", "first": "4.18", "last": "4.23"}
    assert all("cmd" in call for call in tables["nvidia-uvm"]["ioctls"])


def test_table_rendering() -> None:
    text = output.render_table(("A", "B", "C"), [("long cell", None, ""), ("x", "y z", "\x1b[1m")])
    assert text == "A          B    C\nlong cell  -    -\nx          y z  \\x1b[1m\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("é", "é"),
        ("a\nb", r"a\nb"),
        ("\x9b", r"\x9b"),
        ("\udc80", r"\udc80"),
        ("\u200b", r"\u200b"),
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert output.escape(text) == shown


def test_an_ascii_terminal_gets_escapes_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    output.print_table(("A",), [("é",)])
    stream.flush()
    assert raw.getvalue() == b"A\n\\xe9\n"


# ---- counts of the daemon ----


@pytest.fixture
def igpu(sysfs: FakeSysfs) -> FakeSysfs:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci")
    sysfs.add_node(IGPU, "card0", "226:0")
    return sysfs


def answering(monkeypatch: pytest.MonkeyPatch, node: NodeRow) -> FakeClient:
    client = FakeClient([(node, [])])
    client.device_rows = [device(counts(40, errors=2, wait_ns=1_500_000_000))]
    client.put(monkeypatch)
    return client


def test_devices_wide_shows_counts(
    igpu: FakeSysfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, NODE)
    assert kubenpuctl("devices", "-o", "wide", "--sysfs", igpu.root, "--bus", "unix:path=/x") == 0
    header, shown = capsys.readouterr().out.splitlines()
    assert header.split()[-5:] == ["SYSFS", "CALLS", "ERRORS", "WAIT", "SECONDS"]
    assert shown.split()[-3:] == ["40", "2", "1.500000"]


def test_devices_json_has_counts(
    igpu: FakeSysfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, NODE)
    assert kubenpuctl("devices", "--json", "--sysfs", igpu.root, "--bus", "unix:path=/x") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["counts"] == {
        "calls": {"submit": 40, "wait": 0, "other": 0},
        "errors": 2,
        "wait_seconds": 1.5,
        "since": 1000,
    }


def test_counts_of_another_node_are_not_these_devices(
    igpu: FakeSysfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulated kubenpud beside real devices."""
    answering(monkeypatch, SIMULATED)
    assert kubenpuctl("devices", "-o", "wide", "--sysfs", igpu.root, "--bus", "unix:path=/x") == 0
    assert "CALLS" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [(), ("--bus", "unix:path=/x")])
def test_plain_devices_ask_nobody(
    igpu: FakeSysfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    client = answering(monkeypatch, NODE)
    assert kubenpuctl("devices", "--sysfs", igpu.root, *words) == 0
    assert capsys.readouterr().out.startswith("DRIVER  PCI ID     ADDRESS       NODES  NUMA  VENDOR\n")
    assert len(client.items) == 1


def test_another_sysfs_is_not_the_daemons(igpu: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    client = answering(monkeypatch, NODE)
    assert kubenpuctl("devices", "--json", "--sysfs", igpu.root) == 0
    assert len(client.items) == 1


def test_no_daemon_is_no_failure(
    igpu: FakeSysfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeClient([SourceError("kubenpud is not on the message bus")]).put(monkeypatch)
    assert kubenpuctl("devices", "-o", "wide", "--sysfs", igpu.root, "--bus", "unix:path=/x") == 0
    out, err = capsys.readouterr()
    assert "CALLS" not in out
    assert err == ""
