# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl pods` with what kubenpud answers, and without it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kubenpu.cli import bus
from kubenpu.cli.main import main
from kubenpu.exporters.dbus_client import CounterRow, NodeClient, NodeRow
from kubenpu.model.errors import UnreachableError
from kubenpu.model.identity import HostKind, Owner, OwnerKind
from tests.fakes.fake_client import IGPU, LOST, NODE, OFF, SIMULATED, SSH, WEB, FakeClient, counts, row

EVIL = Owner(OwnerKind.POD, "z", 'evil\n\x1b[2Jpod" 日本', "e\u0301" * 2000, "u2", "")
ROWS = [
    row(EVIL, counts(None, other=1), device="npu.0"),
    replace(
        row(replace(WEB, image="ghcr.io/web:1"), counts(40, errors=4, wait_ns=1_250_000_000, other=2)),
        engine_ns={"render": 2_000_000_000, "copy": 500_000_000},
        memory={"vram0": 3 << 19, "gtt": 0},
    ),
    row(replace(SSH, host_kind=HostKind.UNIT), counts(None, other=9), alive=False),
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    return answering(monkeypatch, NODE, ROWS)


def answering(monkeypatch: pytest.MonkeyPatch, node: NodeRow, rows: list[CounterRow]) -> FakeClient:
    fake = FakeClient([(node, rows)])
    fake.put(monkeypatch)
    return fake


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_table(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods"]) == 0
    header, host, web, evil = lines(capsys.readouterr().out)
    assert " ".join(header) == "NAMESPACE POD CONTAINER DEVICE SUBMIT ALLOC FREE MAP WAIT CONTEXT OTHER"
    assert host == ["(host)", "ssh.service", "-", IGPU, *"----0-9"]
    assert web == ["shop", "web-0", "main", IGPU, "40", *"---0-2"]
    assert evil[0] == "z"
    assert client.closed == 1


def test_wide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = [replace(each, allocated=True if each.owner.pod == WEB.pod else None) for each in ROWS]
    answering(monkeypatch, NODE, given)
    assert main(["pods", "-o", "wide"]) == 0
    header, host, web, _ = lines(capsys.readouterr().out)
    numbers = "ERRORS WAIT SECONDS DEVICE SECONDS MEMORY MIB"
    assert " ".join(header[11:]) == f"{numbers} VENDOR ALIVE ALLOCATED SINCE POD UID CONTAINER ID HOST KIND IMAGE"
    since = "1970-01-01T00:16:40Z"
    assert web[-12:-7] == ["4", "1.250000", "2.500000", "1.5", "i915"]
    assert web[-7:] == ["yes", "yes", since, "u1", "c" * 64, "-", "ghcr.io/web:1"]
    assert host[-12:] == ["0", "0.000000", "-", "-", "i915", "no", "-", since, "-", "-", "unit", "-"]


def test_hostile_names_stay_in_their_cell(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pods", "-o", "wide"])
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert out.count("\n") == 4
    assert '\\x1b[2Jpod" 日本' in out
    assert "e\\u0301" * 2000 in out  # a pipe gets all of it


def test_json(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--json"]) == 0
    host, web, evil = json.loads(capsys.readouterr().out)
    assert web == {
        "kind": "pod",
        "namespace": "shop",
        "pod": "web-0",
        "container": "main",
        "pod_uid": "u1",
        "container_id": "c" * 64,
        "unit": None,
        "host_kind": None,
        "image": "ghcr.io/web:1",
        "device": IGPU,
        "vendor": "i915",
        "alive": True,
        "allocated": None,
        "calls": {"submit": 40, "wait": 0, "other": 2},
        "errors": 4,
        "wait_seconds": 1.25,
        "since": 1000,
        "engine_seconds": {"render": 2.0, "copy": 0.5},
        "memory_bytes": {"vram0": 3 << 19, "gtt": 0},
        "simulated": False,
    }
    assert (host["engine_seconds"], host["memory_bytes"]) == (None, None)
    assert host.keys() == web.keys() == evil.keys()
    assert (host["unit"], host["host_kind"], host["pod"], host["alive"]) == ("ssh.service", "unit", None, False)
    assert evil["pod"] == EVIL.pod


def test_filters_are_kubenpuds(client: FakeClient) -> None:
    words = ["-n", "shop", "--pod", "web-0", "--device", IGPU, "--kind", "pod"]
    assert main(["pods", *words]) == 0
    assert client.asked == [{"Namespace": "shop", "Pod": "web-0", "Device": IGPU, "Kind": "pod"}]


@pytest.mark.parametrize("word", ["a\nb", "\udcff", "\x1b[2J"])
def test_what_cannot_be_a_name_is_misuse(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["pods", "--pod", word])
    assert stopped.value.code == 2


def test_notes_go_to_standard_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch, SIMULATED, [row(LOST, counts(7)), row(LOST, counts(5))])
    assert main(["pods"]) == 0
    out, err = capsys.readouterr()
    assert ["(unknown)", "u9", "d" * 12] in [line[:3] for line in lines(out)]
    assert "simulated node" in err
    assert f"12 calls on {IGPU} belong to pods that no container runtime has confirmed" in err


def test_a_hook_that_is_off_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch, OFF, [])
    assert main(["pods"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "hook drm_ioctl is off" in err


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeClient([UnreachableError("kubenpud is not on the message bus", "Start it: systemctl start kubenpud")])
    fake.put(monkeypatch)
    assert main(["pods"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "kubenpuctl: kubenpud is not on the message bus. Start it: systemctl start kubenpud.\n"
    assert fake.closed == 1


@pytest.mark.parametrize("command", [["pods"], ["watch"], ["top", "--once"]])
def test_without_the_library_its_package_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_address: str, _timeout_s: float) -> NodeClient:
        raise ModuleNotFoundError("No module named 'dbus_next'", name="dbus_next")

    monkeypatch.setattr(bus, "_connect", fail)
    assert main(command) == 3
    assert capsys.readouterr().err == "kubenpuctl: Python's dbus_next is missing. Install python3-dbus-next.\n"


@pytest.mark.parametrize("columns", [100, 80, 40])
def test_a_terminal_gets_lines_that_fit(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["pods"]) == 0
    out, err = capsys.readouterr()
    shown = out.splitlines()
    assert max(map(len, shown)) <= columns
    assert shown[0].split()[:2] == ["NAMESPACE", "POD"]
    assert "SUBMIT" in shown[0].split()
    assert IGPU in shown[1] or columns < 80
    assert ("no room for OTHER, " in err) == ("OTHER" not in shown[0])
