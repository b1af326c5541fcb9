# SPDX-License-Identifier: Apache-2.0
"""kubenpuctl whois: JSON as promised, tables that no name can break, errors that do not hide the other answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kubenpu.cli import whois
from kubenpu.cli.main import main
from kubenpu.identity.containers import Containers, PlainContainer

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "cgroup-paths.json").read_text(encoding="utf-8"))
KEYS = ["path", "kind", "driver", "runtime", "pod_uid", "container_id", "qos", "unit", "host_kind", "image", "reason"]
A = "a" * 64
UNCOLLECTED = ("unit", "host_kind", "image", "reason")


def run(*words: str) -> int:
    return main(["whois", *words])


def feed(monkeypatch: pytest.MonkeyPatch, lines: Sequence[bytes]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))


def test_json_of_all_collected_paths(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, [case["path"].encode() for case in CASES])
    assert run("--stdin", "--json") == 0
    answers = json.loads(capsys.readouterr().out)
    assert [list(answer) for answer in answers] == [KEYS] * len(CASES)
    assert [answer["path"] for answer in answers] == [case["path"] for case in CASES]
    assert all(answer["reason"] for answer in answers)
    for case, answer in zip(CASES, answers, strict=True):
        if "not believed" in answer["reason"]:
            assert (answer["pod_uid"], bool(answer["unit"])) == (None, True)
        else:
            assert {key: answer[key] for key in KEYS if key not in UNCOLLECTED} == {
                key: case[key] for key in KEYS if key not in UNCOLLECTED
            }


def test_pod_that_is_not_believed_is_in_no_field(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever works in a container may give what it makes below itself any name."""
    path = f"/docker/{A}/kubepods/pod1/{'b' * 64}"
    assert run(path, "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["path"], answer["kind"], answer["runtime"]) == (path, "plain-container", "docker")
    assert (answer["unit"], answer["host_kind"]) == ("docker-aaaaaaaaaaaa", "container")
    assert (answer["pod_uid"], answer["container_id"], answer["qos"]) == (None, A, None)
    assert "not believed below docker-aaaaaaaaaaaa" in answer["reason"]


def test_own_process(capsys: pytest.CaptureFixture[str]) -> None:
    path = whois.parse_proc_cgroup(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    status = run(str(os.getpid()), "--json")
    output = capsys.readouterr()
    if path is None:
        assert (status, "cgroup v1" in output.err) == (1, True)
    else:
        assert (status, json.loads(output.out)[0]["path"]) == (0, path)


def test_missing_process_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert run("/system.slice/a.service", str(gone.pid), "junk", "", "9" * 5000, "/", "--json") == 1
    output = capsys.readouterr()
    assert [answer["unit"] for answer in json.loads(output.out)] == ["a.service", "/"]
    assert f"process {gone.pid}" in output.err
    assert '"junk" is neither a PID nor a cgroup path. A cgroup path begins with /.' in output.err
    assert '"" is neither' in output.err
    assert len(output.err.splitlines()) == 4


def test_table_says_how_it_was_decided(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"/docker/{'a' * 64}") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "KIND"
    assert "docker-aaaaaaaaaaaa" in row
    assert "outermost container" in row
    assert run(f"/docker/{'a' * 64}", "-o", "wide") == 0
    assert "RUNTIME" in capsys.readouterr().out


def test_a_container_has_its_name_where_its_state_can_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = PlainContainer("docker:train", "cuda:13")
    monkeypatch.setattr(Containers, "find", lambda _self, claim: named if claim.container_id == A else None)
    inner = f"/docker/{A}/kubepods/podu/{'b' * 64}"
    assert run(f"/docker/{A}", inner, "--json") == 0
    outer, below = json.loads(capsys.readouterr().out)
    assert (outer["unit"], outer["host_kind"], outer["image"]) == ("docker:train", "container", "cuda:13")
    assert (below["path"], below["unit"], below["image"]) == (inner, "docker:train", "cuda:13")
    assert "not believed below docker:train" in below["reason"]
    assert run(f"/docker/{A}", "-o", "wide") == 0
    assert "cuda:13" in capsys.readouterr().out


def test_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("/system.slice/slurmstepd.scope/job_7/step_0") == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[:5] == ["other", "job", "-", "-", "slurm:7"]


def test_hostile_name_cannot_break_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, [b"/system.slice/\x1b[2J\xff\xe2\x80\xae.service", b"", b"/ok.service\r"])
    assert run("--stdin") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "\x1b" not in "".join(lines)
    feed(monkeypatch, [b"/system.slice/\x1b[2J\xff.service"])
    assert run("--stdin", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["unit"] == "\x1b[2J\udcff.service"


def test_nothing_to_look_up_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "--stdin" in capsys.readouterr().err


def test_empty_input_is_an_empty_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, [])
    assert run("--stdin", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/system.slice/ssh.service\n", "/system.slice/ssh.service"),
        ("12:cpu,cpuacct:/x\n1:name=systemd:/y\n0::/z\n", "/z"),
        ("0::/a.slice:cri-containerd:b (deleted)\n", "/a.slice:cri-containerd:b (deleted)"),
        ("12:cpu:/x\n", None),
        ("", None),
    ],
)
def test_proc_cgroup(text: str, path: str | None) -> None:
    assert whois.parse_proc_cgroup(text) == path
