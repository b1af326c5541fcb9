# SPDX-License-Identifier: Apache-2.0
"""Log lines: one per record, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from kubenpu.config.log import JsonFormatter, LogfmtFormatter, set_up_logging

HOSTILE = 'pod "x"\nlevel=error msg=forged\r\x1b[31m\x7f\udcff\u2028'


def record(message: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("kubenpu.test", logging.WARNING, "f.py", 1, message, args, None)
    made.created, made.msecs = 1700000000.25, 250.0
    return made


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level


def test_logfmt() -> None:
    line = LogfmtFormatter().format(record("%d devices", 3))
    assert line == 'time=2023-11-14T22:13:20.250Z level=warn logger=kubenpu.test msg="3 devices"'
    assert LogfmtFormatter().format(record("done")).endswith(" msg=done")
    assert LogfmtFormatter().format(record("")).endswith(' msg=""')


def test_json() -> None:
    assert json.loads(JsonFormatter().format(record("%s", HOSTILE))) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warn",
        "logger": "kubenpu.test",
        "msg": HOSTILE,
    }


@pytest.mark.parametrize("formatter", [LogfmtFormatter(), JsonFormatter()])
def test_a_hostile_name_stays_in_its_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record("refused %s", HOSTILE))
    assert line.isascii()
    assert "\n" not in line
    assert "\r" not in line
    assert "\x1b" not in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("formatter", [LogfmtFormatter(), JsonFormatter()])
def test_a_traceback_is_one_field(formatter: logging.Formatter) -> None:
    made = record("broke")
    try:
        int(HOSTILE)
    except ValueError:
        made.exc_info = sys.exc_info()
    line = formatter.format(made)
    assert "ValueError" in line
    assert len(line.splitlines()) == 1


def test_set_up(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("warn", "json")
    set_up_logging("warn", "logfmt")
    logging.getLogger("a").info("not shown")
    logging.getLogger("a").warning("shown")
    assert len(root_logger.handlers) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith(" level=warn logger=a msg=shown\n")
