# SPDX-License-Identifier: Apache-2.0
"""One TOML table of a driver table file while it is read: every value checked, every key known.

Pure. Errors name file and key, and show what was there without trusting it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from kubenpu.model.errors import ConfigError

_T = TypeVar("_T")


def refusal(source: str, key: str, value: object, wanted: str) -> ConfigError:
    """The error for a value that cannot be."""
    try:
        shown = repr(value)
    except ValueError:
        shown = "too long a number"  # Python refuses to print integers of thousands of digits
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ConfigError(f"{source}: {key} is {shown}", f"It must be {wanted}")


class Section:
    """Keys are taken one by one; what is left at the end is unknown."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self._left = dict(values)
        self.source = source
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self._left.pop(key, default)
        if value is None:
            raise ConfigError(f"{self.source}: {self._prefix}{key} is missing", f"Add it; its type is {kind.__name__}")
        if type(value) is not kind:  # not isinstance: true is no number here
            raise self.refuse(key, value, f"of type {kind.__name__}")
        return value

    def take_text(self, key: str, pattern: re.Pattern[str], default: str | None = None) -> str:
        return self._matching(key, self.take(key, str, default), pattern)

    def take_texts(self, key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(self._matching(key, value, pattern) for value in self.take(key, list, []))

    def take_choice(self, key: str, choices: Iterable[str]) -> str:
        value = self.take(key, str)
        if value not in choices:
            raise self.refuse(key, value, f"one of {', '.join(choices)}")
        return value

    def take_number(self, key: str, numbers: range, default: int | None = None) -> int:
        value = self.take(key, int, default)
        if value not in numbers:
            raise self.refuse(key, value, f"from {numbers.start:#x} to {numbers.stop - 1:#x}")
        return value

    def take_section(self, key: str) -> Section:
        return Section(self.take(key, dict), self.source, f"{self._prefix}{key}.")

    def take_sections(self, key: str, keys: str) -> Iterator[Section]:
        """The tables of a list; `keys` is what they hold, for errors. Each is checked for unknown keys in the end."""
        for index, value in enumerate(self.take(key, list, [])):
            if not isinstance(value, dict):
                raise self.refuse(f"{key}[{index}]", value, f"a table with {keys}")
            section = Section(value, self.source, f"{self._prefix}{key}[{index}].")
            yield section
            section.finish(keys)

    def names(self) -> tuple[str, ...]:
        """Keys that were not taken yet, where they are names and not words of the schema."""
        return tuple(self._left)

    def finish(self, keys: str) -> None:
        """Refuse what was not taken; `keys` is what there is."""
        for key in sorted(self._left):
            raise ConfigError(f"{self.source}: unknown key {(self._prefix + key)[:80]!r}", f"Keys are {keys}")

    def refuse(self, key: str, value: object, wanted: str) -> ConfigError:
        return refusal(self.source, self._prefix + key, value, wanted)

    def _matching(self, key: str, value: object, pattern: re.Pattern[str]) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.refuse(key, value, f"text that matches {pattern.pattern}")
        return value
