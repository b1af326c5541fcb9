# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl watch`: what is printed for each interval, and how it outlives kubenpud."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from kubenpu.cli.main import main
from kubenpu.exporters.dbus_client import CounterRow, NodeRow
from kubenpu.model.errors import SourceError, UnreachableError
from tests.fakes.fake_client import IGPU, LOST, NODE, SIMULATED, SSH, WEB, FakeClient, counts, row

GONE = UnreachableError("kubenpud is not on the message bus", "Start it: systemctl start kubenpud")
Item = tuple[NodeRow, list[CounterRow]] | SourceError


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeClient]:
    """Runs `watch` until what kubenpud has to say has been said."""
    slept: list[float] = []
    monkeypatch.setattr("kubenpu.cli.bus.time.monotonic", lambda: sum(slept))
    monkeypatch.setattr("kubenpu.cli.watch.time.sleep", slept.append)

    def run(*items: Item, words: tuple[str, ...] = ()) -> FakeClient:
        fake = FakeClient(items)
        fake.put(monkeypatch)
        samples = sum(not isinstance(item, SourceError) for item in items) - 1
        assert main(["watch", "--count", str(samples), *words]) == 0
        assert fake.items == []
        return fake

    return run


def test_a_line_for_what_changed(watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]) -> None:
    before = [row(WEB, counts(10)), row(SSH, counts(3))]
    after = [row(WEB, counts(30, errors=5, wait_ns=10**9)), row(SSH, counts(3))]
    fake = watched((NODE, before), (NODE, after), (NODE, after), words=("--interval", "4", "-n", "shop"))
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    assert re.fullmatch(
        r"time=\S+Z kind=pod namespace=shop pod=web-0 container=main "
        rf"device={IGPU} submits/s=5.0 calls/s=5.0 errors/s=1.25 waiting=0.25",
        line,
    )
    assert err == ""
    assert fake.asked == [{"Namespace": "shop"}] * 3


def test_wide_lines(watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]) -> None:
    after = [row(WEB, counts(30)), row(LOST, replace(counts(1), errors=None))]
    watched((NODE, [row(WEB, counts(10))]), (NODE, after), words=("-o", "wide"))
    web, unconfirmed = capsys.readouterr().out.splitlines()
    assert f" container=main pod_uid={WEB.pod_uid} container_id={WEB.container_id} device=" in web
    assert web.endswith(" waiting=0.0 calls=30 errors=0")
    assert f" pod_uid={LOST.pod_uid} container_id={LOST.container_id} device=" in unconfirmed
    assert unconfirmed.endswith(" calls=1 errors=-")


def test_json_lines(watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]) -> None:
    watched((SIMULATED, [row(WEB, counts(10))]), (SIMULATED, [row(WEB, counts(30)), row(SSH)]), words=("--json",))
    out, err = capsys.readouterr()
    web, ssh = map(json.loads, out.splitlines())
    assert (web["seconds"], web["submits_per_second"], web["threads_waiting"]) == (2.0, 10.0, 0.0)
    assert (web["pod"], web["calls"]["submit"], web["simulated"]) == ("web-0", 30, True)
    assert ssh["calls_per_second"] is None  # new here, and its counts began before the first sample
    assert ssh.keys() == web.keys()
    assert "simulated node" in err


def test_text_says_that_it_is_simulated(watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]) -> None:
    watched((SIMULATED, [row(WEB, counts(10))]), (SIMULATED, [row(WEB, counts(30))]))
    assert capsys.readouterr().out.endswith(" simulated=yes\n")


def test_a_name_cannot_forge_a_field_or_a_line(
    watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]
) -> None:
    evil = replace(WEB, pod='x device=y\n"time=1 \x1b[2J日', namespace="")
    watched((NODE, [row(evil, counts(1))]), (NODE, [row(evil, counts(2))]))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isascii() and line.isprintable()
    assert r'pod="x device=y\n\"time=1 \u001b[2J\u65e5"' in line
    assert "namespace=" not in line


def test_kubenpud_is_waited_for_and_the_interval_is_longer(
    watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = watched((NODE, [row(of=counts(10))]), GONE, GONE, (NODE, [row(of=counts(40))]))
    out, err = capsys.readouterr()
    assert "submits/s=5.0" in out  # 30 in three intervals of two seconds
    assert err.splitlines() == [
        f"kubenpuctl: reconnecting: {GONE}",
        "kubenpuctl: connected again",
    ]
    assert fake.closed == 3


def test_counters_that_began_anew_make_no_spike(
    watched: Callable[..., FakeClient], capsys: pytest.CaptureFixture[str]
) -> None:
    again = replace(NODE, counting_since=2000)
    watched((NODE, [row(of=counts(10))]), (again, [row(of=counts(10**9, since=2000))]))
    assert "submits/s=- calls/s=- errors/s=- waiting=-" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("--interval", "0.5"),
        ("--interval", "nan"),
        ("--interval", "soon"),
        ("--interval", "1e9"),
        ("--count", "0"),
        ("--count", "-1"),
        ("--count", "x"),
    ],
)
def test_misuse(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["watch", *words])
    assert stopped.value.code == 2
    assert "give " in capsys.readouterr().err


def test_without_kubenpud_it_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeClient([GONE]).put(monkeypatch)
    assert main(["watch"]) == 3
    assert "systemctl start kubenpud" in capsys.readouterr().err


def test_interrupt_ends_it_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    fake = FakeClient([(NODE, [row()])])
    fake.put(monkeypatch)
    monkeypatch.setattr("kubenpu.cli.watch.time.sleep", interrupt)
    assert main(["watch"]) == 130
    assert capsys.readouterr() == ("", "")
    assert fake.closed == 1


def test_one_frame_of_top_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []
    monkeypatch.setattr("kubenpu.cli.bus.time.monotonic", lambda: sum(slept))
    monkeypatch.setattr("kubenpu.cli.top.time.sleep", slept.append)
    before, after = [row(WEB, counts(10)), row(SSH)], [row(SSH), row(WEB, counts(30))]
    FakeClient([(NODE, before), (NODE, after)]).put(monkeypatch)
    assert main(["top", "--once", "--json", "--interval", "4"]) == 0
    web, ssh = json.loads(capsys.readouterr().out)
    assert (web["pod"], web["submits_per_second"], web["seconds"]) == ("web-0", 5.0, 4.0)
    assert (ssh["unit"], ssh["calls_per_second"]) == ("ssh.service", 0.0)


def test_live_top_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json"]) == 2
    assert "--json needs --once" in capsys.readouterr().err
