# SPDX-License-Identifier: Apache-2.0
"""Reads one TOML file as dotted keys and remembers on which line each of them is, which tomllib does not tell.

Owns no file open longer than the reading. The line is found by looking at the text, for messages only; where it
cannot be found the file alone is named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kubenpu.model.errors import ConfigError
from kubenpu.model.files import read_regular_file
from kubenpu.model.toml import parse_toml

MAX_KEY_CHARACTERS = 200
_HEADING = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """`document` as tomllib gives it, `lines` from dotted key to the first line it is on."""

    path: Path
    document: dict[str, object]
    lines: dict[str, int]

    def entries(self, leaves: Collection[str]) -> Iterator[tuple[str, object]]:
        """Dotted keys and values; a table whose key is among `leaves` is a value, of the wrong type."""
        yield from _flatten("", self.document, leaves)

    def where(self, key: str) -> str:
        """`file:line` of a key, or of the nearest table it is in."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


def read_toml(path: Path) -> TomlFile | None:
    """None if there is no such file. Raises ConfigError with file and, where known, line."""
    try:
        content = read_regular_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "Make it a file that kubenpud may read") from error
    try:
        text = content.decode()
        return TomlFile(path, parse_toml(text), find_lines(text))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from error
    except ValueError as error:
        raise ConfigError(f"{path}{_line_of(error)}: not valid TOML: {error}") from error


def find_lines(text: str) -> dict[str, int]:
    """The first line of every dotted key and table heading, as far as plain looking finds it."""
    lines: dict[str, int] = {}
    table = ""
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole[:MAX_KEY_CHARACTERS]
        if heading := _HEADING.fullmatch(line):
            table = _plain(heading[1])
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            key = _plain(assignment[1])
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _line_of(error: Exception) -> str:
    found = re.search(r"at line (\d+)", str(error))
    return f":{found[1]}" if found else ""


def _flatten(prefix: str, table: dict[str, object], leaves: Collection[str]) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in leaves:
            yield from _flatten(f"{key}.", value, leaves)
        else:
            yield key, value
