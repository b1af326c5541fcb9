# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl pods` against a server that speaks as kubenpud does, and against others that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubenpu.cli.main import main
from tests.fakes.sim_metrics import free_url, serve_text

HOSTILE = 'evil\\n\x1b[2Jpod\\\\ \\"}'  # as the text format escapes it: line end, terminal code, backslash, quote
IGPU = 'device="0000:00:02.0",vendor="i915"'
A, B = (f'namespace="vision",pod="detector",container="{name}",{IGPU}' for name in "ab")
EXPOSITION = f"""\
# TYPE kubenpu_ioctl counter
kubenpu_ioctl_total{{{A},kind="submit"}} 40
kubenpu_ioctl_total{{{A},kind="wait"}} 2
kubenpu_ioctl_total{{{B},kind="submit"}} 7
kubenpu_ioctl_total{{namespace="z",pod="{HOSTILE}",container="",device="vgem",vendor="-",kind="other"}} 1
# TYPE kubenpu_ioctl_errors counter
kubenpu_ioctl_errors_total{{{A},kind="submit"}} 3
kubenpu_ioctl_errors_total{{{A},kind="wait"}} 1
# TYPE kubenpu_ioctl_wait_seconds counter
kubenpu_ioctl_wait_seconds_total{{{A}}} 1.25
# TYPE kubenpu_host_ioctl counter
kubenpu_host_ioctl_total{{unit="batch.service",{IGPU},kind="alloc"}} 9
# TYPE kubenpu_device_ioctl counter
kubenpu_device_ioctl_total{{{IGPU},kind="submit"}} 47
"""


@pytest.fixture
def url() -> Any:
    with serve_text(EXPOSITION) as address:
        yield address


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--url", url]) == 0
    header, host, first, second, hostile = lines(capsys.readouterr().out)
    assert header[:5] == ["NAMESPACE", "POD", "CONTAINER", "DEVICE", "VENDOR"]
    assert header[5:] == ["SUBMIT", "ALLOC", "FREE", "MAP", "WAIT", "CONTEXT", "OTHER", "ERRORS"]
    assert host == ["(host)", "batch.service", "-", "0000:00:02.0", "i915", *"-9-----0"]
    assert first == ["vision", "detector", "a", "0000:00:02.0", "i915", "40", *"---2--4"]
    assert second == ["vision", "detector", "b", "0000:00:02.0", "i915", *"7------0"]
    assert hostile[0] == "z"


def test_hostile_names_stay_in_their_cell(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pods", "--url", url])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("\n") == 5
    assert '\\x1b[2Jpod\\ "}' in out


def test_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--json", "--url", url]) == 0
    document = json.loads(capsys.readouterr().out)
    by_place = {(entry["namespace"], entry["container"], entry["unit"]): entry for entry in document}
    assert by_place["vision", "a", None] == {
        "namespace": "vision",
        "pod": "detector",
        "container": "a",
        "unit": None,
        "device": "0000:00:02.0",
        "vendor": "i915",
        "calls": {"submit": 40, "wait": 2},
        "errors": 4,
        "wait_seconds": 1.25,
        "simulated": False,
    }
    assert by_place["vision", "b", None]["wait_seconds"] is None
    assert by_place[None, None, "batch.service"]["calls"] == {"alloc": 9}
    assert by_place["z", None, None]["vendor"] is None
    assert by_place["z", None, None]["pod"] == 'evil\n\x1b[2Jpod\\ "}'


def test_namespace_filter_hides_everything_else(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "-n", "vision", "--json", "--url", url]) == 0
    assert [entry["container"] for entry in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_wide_adds_wait_and_unit(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "-o", "wide", "--url", url]) == 0
    header, host, first, *_ = lines(capsys.readouterr().out)
    assert " ".join(header).endswith("ERRORS WAIT SECONDS UNIT")
    assert host[-2:] == ["-", "batch.service"]
    assert first[-2:] == ["1.250000", "-"]


def test_notes_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    text = """\
# TYPE kubenpu_simulated gauge
kubenpu_simulated 1
# TYPE kubenpu_hook_up gauge
kubenpu_hook_up{hook="drm_ioctl",mechanism="off"} 0
# TYPE kubenpu_events_dropped counter
kubenpu_events_dropped_total{reason="slots_full"} 12
kubenpu_events_dropped_total{reason="no_storage"} 0
"""
    with serve_text(text) as url:
        assert main(["pods", "--url", url]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "simulated node" in err
    assert "hook drm_ioctl is off" in err
    assert "12 events lost: slots_full" in err
    assert "no_storage" not in err


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--url", free_url()]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not answer" in err
    assert "systemctl start kubenpud" in err


@pytest.mark.parametrize("body", ["{ this is no exposition\n", b"\xff\xfe\x00\n", "name{label=} x\n"])
def test_something_else_answers(body: str | bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_text(body) as url:
        assert main(["pods", "--url", url]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "is not kubenpud" in err


def test_an_error_page(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_text("busy", status=503) as url:
        assert main(["pods", "--url", url]) == 3
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/metrics", "localhost:10074"])
def test_only_http(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pods", "--url", url]) == 3
    assert "is not an http URL" in capsys.readouterr().err
