# SPDX-License-Identifier: Apache-2.0
"""The flags that kubenpud.service gives kubenpud: ARGS in the files that the unit names. Read as systemd reads them.

Holds no file open. Refuses flags that kubenpud would refuse.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from kubenpu.config.settings import parse_daemon_arguments
from kubenpu.model.errors import ConfigError
from kubenpu.model.files import read_regular_file

FILES = (Path("/etc/default/kubenpu"), Path("/etc/sysconfig/kubenpu"))
_ARGS = re.compile(r"^[ \t]*ARGS=(.*)$", re.M)


def unit_flags() -> argparse.Namespace:
    """Of the last file that sets ARGS. Raises ConfigError."""
    path, words = ([*_find()] or [(FILES[0], [])])[-1]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parse_daemon_arguments(words)
    except SystemExit as error:
        why = said.getvalue().strip().rpartition("error: ")[2] if error.code else "they only print something"
        raise ConfigError(f"{path}: ARGS are no flags of kubenpud: {why}", "kubenpud(8) has them all") from error


def _find() -> Iterator[tuple[Path, list[str]]]:
    for path in FILES:
        try:
            text = read_regular_file(path).decode(errors="replace").replace("\\\n", "")
            for line in _ARGS.findall(text):  # quotes around the whole, then those of each word
                yield path, shlex.split(" ".join(shlex.split(line)))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}", "Make it a file that can be read") from error
        except ValueError as error:
            raise ConfigError(f"{path}: ARGS: {error}", "Close the quotation mark") from error
