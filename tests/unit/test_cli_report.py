# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl report`: its arguments, where it reads from, what it refuses."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kubenpu.cli import main as cli
from kubenpu.cli.report import parse_time
from kubenpu.model.errors import ConfigError
from tests.fakes.history_rig import JOB, SSH, WEB, Rig


@pytest.mark.parametrize(
    ("text", "unix"),
    [
        ("0m", 1_000_001),
        ("90m", 994_601),
        ("24h", 913_601),
        ("7d", 395_201),
        ("2w", 0),
        ("@12", 12),
        ("1970-01-02T00:00:00Z", 86400),
        ("1970-01-02T00:00:00+01:00", 82800),
    ],
)
def test_times(text: str, unix: int) -> None:
    assert parse_time(text, 1_000_000.5) == unix


@pytest.mark.parametrize("option", ["--since", "--until", "--by"])
def test_a_wrong_argument_is_misuse(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", option, "xx"])
    assert caught.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1y", "yesterday", "9999999d", "@-1", "2026-13-01", "7d "])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no time"):
        parse_time(text, 1e6)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "usage.db")
    made.step()
    made.labels[WEB] = {"team": "blue"}
    for names in (WEB, JOB, SSH):
        made.call(names, 5)
    made.step()
    yield made
    made.recorder.close()


def run(rig: Rig, *words: str) -> int:
    return cli.main(["report", "--database", str(rig.path), "--since", "@0", "--until", "@4000000000", *words])


def test_command_reads_a_database(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rig, "--by", "label:team", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["names"]["team"] for line in document["lines"]][:2] == ["(none)", "blue"]
    assert (document["node"], document["simulated"]) == (None, None)


def test_command_writes_a_page(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rig, "--by", "pod", "--html", str(tmp_path / "page.html")) == 0
    text = (tmp_path / "page.html").read_text()
    assert "web-0" in text
    assert text.count("<rect") >= 2 * 4  # three workloads and what is idle; again over time
    assert capsys.readouterr().out == ""
    assert run(rig, "--html", str(tmp_path / "none" / "page.html")) == 2
    assert "cannot write" in capsys.readouterr().err


def test_command_says_when_nothing_is_stored(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--database", str(rig.path), "--since", "@0", "--until", "@1"]) == 0
    captured = capsys.readouterr()
    assert "nothing is stored of this time" in captured.err
    assert "1970-01-01T00:00:01Z" in captured.out


@pytest.mark.parametrize("words", [["--since", "@5", "--until", "@5"], ["--price", "/none"]])
def test_command_refuses(rig: Rig, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(rig, *words) == 2
    assert capsys.readouterr().out == ""


def test_a_file_that_is_no_history_is_misuse(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As any other file that is named on the command line; what a history lacks is another matter."""
    (tmp_path / "text").write_text("root:x:0:0:root:/root:/bin/bash\n" * 40)
    for path in (tmp_path / "none", tmp_path / "text", tmp_path):
        assert cli.main(["report", "--database", str(path)]) == 2
        assert str(path) in capsys.readouterr().err
    with closing(sqlite3.connect(rig.path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE workload SET pod = CAST(x'ff' AS TEXT) WHERE pod != ''")
    assert run(rig, "--by", "pod") == 1
    assert "UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["weather", "label:", "label:a\nb"])
def test_command_takes_no_other_by(rig: Rig, by: str) -> None:
    with pytest.raises(SystemExit):
        run(rig, "--by", by)


def test_command_needs_a_daemon_or_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--bus", "unix:abstract=kubenpu-test-nothing"]) == 3
    assert "--database" in capsys.readouterr().err


def test_without_an_end_it_is_all_so_far(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one, what is not in a whole quarter of an hour is left out."""
    rig.call(WEB, 7)
    rig.step()
    monkeypatch.setattr(time, "time", lambda: rig.wall_ms / 1000 + 1)
    words = ["report", "--database", str(rig.path), "--since", "@0", "--by", "pod", "--csv"]
    assert cli.main(words) == 0
    assert "web-0" in capsys.readouterr().out
    assert cli.main([*words, "--until", "0m"]) == 0
    assert "web-0" not in capsys.readouterr().out
