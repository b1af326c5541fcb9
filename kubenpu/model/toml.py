# SPDX-License-Identifier: Apache-2.0
"""Parses TOML that an operator wrote, and refuses what would cost the parser or its readers more than it can be worth.

Pure. tomllib takes time and memory by the square of the parts of a dotted key: 40 KB of it are 1.5 GiB.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable

MAX_DOTS = 200  # of a line, hence of a key
MAX_DEPTH = 32


def parse_toml(text: str, parse_float: Callable[[str], object] = float) -> dict[str, object]:
    """As tomllib.loads(). Raises ValueError alone, with the line where that is known."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise ValueError(f"More than {MAX_DOTS} dots (at line {number})")
    try:
        document: dict[str, object] = tomllib.loads(text, parse_float=parse_float)
    except RecursionError as error:
        raise ValueError("Nested too deep") from error
    if not _is_flat(document):
        raise ValueError(f"Nested deeper than {MAX_DEPTH} tables and lists")
    return document


def _is_flat(document: dict[str, object]) -> bool:
    """Whether a walk that calls itself may go through it."""
    level: list[object] = [document]
    for _ in range(MAX_DEPTH):
        level = [each for value in level for each in _values(value)]
    return not level


def _values(value: object) -> list[object]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
