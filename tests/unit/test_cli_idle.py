# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl pods --idle`: what was given and not used, what was used and not given, and what nobody can say."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from kubenpu.cli.idle import DEFAULT_MINUTES
from kubenpu.cli.main import main
from kubenpu.model.allocation import Allocation
from kubenpu.model.errors import SourceError
from tests.fakes.fake_client import IGPU, NODE, SIMULATED, SSH, WEB, FakeClient, counts, device, row

NOW = 1_700_000_000.0
GIVEN = Allocation("ml", "train-0", "worker", "amd.com/gpu", "card1", "", IGPU, "u2", NOW - 3600)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(time, "time", lambda: NOW)
    fake = FakeClient([(NODE, [replace(row(WEB), allocated=False), row(SSH), replace(row(), allocated=True)])])
    fake.allocation_rows = [
        GIVEN,
        GIVEN._replace(pod="busy-0", idle_since=NOW - 60 * DEFAULT_MINUTES + 1),
        GIVEN._replace(pod="mig-0", device=None, device_id="MIG-1", resource="nvidia.com/mig", idle_since=None),
    ]
    fake.device_rows = [device(counts(5))]
    fake.put(monkeypatch)
    return fake


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_table(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--idle"]) == 0
    said = capsys.readouterr()
    header, *rows = lines(said.out)
    assert " ".join(header) == "NAMESPACE POD CONTAINER DEVICE STATE IDLE MINUTES RESOURCE DEVICE ID"
    assert rows == [
        ["ml", "train-0", "worker", IGPU, "idle", "60", "amd.com/gpu", "card1"],
        ["shop", "web-0", "main", IGPU, "not", "allocated", "-", "-", "-"],
    ]
    assert "not judged: what is given as nvidia.com/mig" in said.err


@pytest.mark.parametrize(("minutes", "pods"), [("0", ["busy-0", "train-0"]), ("60", ["train-0"]), ("61", [])])
def test_minutes(client: FakeClient, minutes: str, pods: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--idle", minutes]) == 0
    assert [line[1] for line in lines(capsys.readouterr().out) if "idle" in line] == pods


@pytest.mark.parametrize("minutes", ["-1", "x", "1.5", "1" * 8, "\u0661"])
def test_minutes_that_are_none(minutes: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["pods", f"--idle={minutes}"])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("vendor", "submits"), [("amdgpu", 5), ("nvidia", 5), ("somebody's", 5), (None, 5), ("hailo", None)]
)
def test_a_driver_that_does_not_show_all_submissions_proves_nobody_idle(
    client: FakeClient, vendor: str | None, submits: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    client.device_rows = [replace(device(counts(submits)), vendor=vendor)]
    client.items *= 2
    assert main(["pods", "--idle", "--json"]) == 0
    assert [each["state"] for each in json.loads(capsys.readouterr().out)] == ["not known", "no calls", "not allocated"]
    client.device_rows = []
    assert main(["pods", "--idle"]) == 0
    assert "no calls" in capsys.readouterr().out


def test_wide_and_json_have_what_is_not_known_too(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.items *= 2
    assert main(["pods", "--idle", "-o", "wide"]) == 0
    (unknown,) = (line for line in lines(capsys.readouterr().out) if "mig-0" in line)
    assert unknown == ["ml", "mig-0", "worker", "-", "not", "known", "-", "nvidia.com/mig", "MIG-1", "-", "u2"]
    assert main(["pods", "--idle", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["pod"], each["state"], each["idle_minutes"]) for each in found] == [
        ("mig-0", "not known", None),
        ("train-0", "idle", 60),
        ("web-0", "not allocated", None),
    ]
    assert found[2] == {
        "state": "not allocated",
        "namespace": "shop",
        "pod": "web-0",
        "container": "main",
        "device": IGPU,
        "idle_minutes": None,
        "resource": None,
        "device_id": None,
        "claim": None,
        "pod_uid": "u1",
        "simulated": False,
    }


@pytest.mark.parametrize(
    ("words", "pods"),
    [
        (["--pod", "train-0"], {"train-0"}),
        (["-n", "x"], set()),
        (["--device", IGPU], {"train-0"}),
        (["--kind", "pod"], {"train-0", "mig-0"}),
        (["--kind", "host"], set()),
        (["--kind", "unknown"], set()),
    ],
)
def test_filters_are_for_what_was_given_too(
    client: FakeClient, words: list[str], pods: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    client.items = [(SIMULATED, [])]
    assert main(["pods", "--idle", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["pod"] for each in found} == pods
    assert all(each["simulated"] for each in found)


def test_a_clock_behind_that_of_kubenpud(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.allocation_rows = [GIVEN._replace(idle_since=NOW + 300)]
    assert main(["pods", "--idle", "0", "--json"]) == 0
    assert [each["idle_minutes"] for each in json.loads(capsys.readouterr().out)] == [0, None]


def test_where_no_kubelet_tells(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> list[Allocation]:
        raise SourceError("the kubelet has not told")

    monkeypatch.setattr(client, "allocations", refuse)
    assert main(["pods", "--idle"]) == 1
    assert "the kubelet has not told" in capsys.readouterr().err
