# SPDX-License-Identifier: Apache-2.0
"""The types a setting can have: what is accepted, how that is said, what it becomes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Scalar = str | int | bool | Path
Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class ValueType:
    """`expected` completes the sentence "expected ..."; `check` gives None for what is not acceptable.

    `many`: a list in TOML, a repeatable flag. `number`: a flag's text is a number. `switch`: true or false, and the
    flag alone means true. `metavar` stands for the value in --help, and says what a shell may complete.
    """

    expected: str
    check: Callable[[object], Value | None]
    many: bool = False
    number: bool = False
    switch: bool = False
    metavar: str = "VALUE"

    def from_text(self, text: str) -> object:
        """One text of the command line as TOML would have given it."""
        if self.switch:
            return {"true": True, "false": False}.get(text, text)
        return int(text) if self.number and re.fullmatch(r"-?[0-9]{1,18}", text) else text


def text(pattern: str, expected: str, metavar: str = "VALUE") -> ValueType:
    """A string that matches a pattern as a whole."""

    def check(value: object) -> str | None:
        return value if isinstance(value, str) and re.fullmatch(pattern, value) else None

    return ValueType(expected, check, metavar=metavar)


def choice(*options: str) -> ValueType:
    """One of a few words."""
    return text("|".join(options), "one of " + ", ".join(options), "|".join(options))


def whole_number(lowest: int, highest: int) -> ValueType:
    """An integer within bounds, both included; true and false are none."""

    def check(value: object) -> int | None:
        right = isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest
        return value if right and isinstance(value, int) else None

    return ValueType(f"a whole number from {lowest} to {highest}", check, number=True, metavar="NUMBER")


def switch() -> ValueType:
    """true or false."""

    def check(value: object) -> bool | None:
        return value if isinstance(value, bool) else None

    return ValueType("true or false", check, switch=True, metavar="true|false")


def absolute_path() -> ValueType:
    """A path from the root; `unix://` before it is dropped."""

    def check(value: object) -> Path | None:
        if not isinstance(value, str):
            return None
        path = value.removeprefix("unix://")
        return Path(path) if path.startswith("/") and path.isprintable() else None

    return ValueType("an absolute path", check, metavar="PATH")


def list_of(item: ValueType, expected: str, least: int = 0, most: int = 1 << 16) -> ValueType:
    """A list of what `item` accepts."""

    def check(value: object) -> tuple[Scalar, ...] | None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            return None
        checked = tuple(found for entry in value if isinstance(found := item.check(entry), Scalar))
        return checked if len(checked) == len(value) else None

    return ValueType(expected, check, many=True, metavar=item.metavar)
