# SPDX-License-Identifier: Apache-2.0
"""Logging of the daemons: one line per record on stderr, as logfmt or JSON, whatever a record contains.

Data comes from the standard logging module. Line breaks, control characters and broken text are escaped, so that a
pod's name cannot forge a line; a traceback becomes one field.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_NAMES = {number: name for name, number in LEVELS.items()}
_BARE = re.compile(r"[A-Za-z0-9_./:@+-]+")


def set_up_logging(level: str, line_format: str) -> None:
    """Replaces whatever handlers the root logger had."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if line_format == "json" else LogfmtFormatter())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # it logs a traceback for what its caller reports anyway


class LogfmtFormatter(logging.Formatter):
    """`time=... level=info logger=... msg="..."`."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={quote(value)}" for name, value in _fields(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object with the same fields."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record))


def _fields(record: logging.LogRecord) -> dict[str, str]:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields = {
        "time": f"{seconds}.{int(record.msecs):03d}Z",
        "level": _NAMES.get(record.levelno, record.levelname.lower()),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    if record.exc_info:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return fields


def quote(value: str) -> str:
    """JSON's quoting: everything that is not printable ASCII is escaped."""
    return value if _BARE.fullmatch(value) else json.dumps(value).replace("\x7f", "\\u007f")
