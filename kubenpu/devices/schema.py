# SPDX-License-Identifier: Apache-2.0
"""What a driver table file may say: the text of one TOML file in, a DriverTable or a ConfigError out.

Pure: reads no file. Strict, because a mistyped table counts the wrong thing without anyone noticing: unknown keys,
numbers that the driver can never receive and one number with two kinds are refused; the error names file and key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from kubenpu.model.device import DriverTable, IoctlRule, Visibility
from kubenpu.model.errors import ConfigError
from kubenpu.model.kinds import KINDS

SUBSYSTEMS = ("drm", "accel")
CORE_NAME = "drm"
DRM_IOCTL_TYPE = 0x64
# Numbers of a DRM or accel driver (DRM_COMMAND_BASE up to DRM_COMMAND_END); all others belong to the DRM core.
DRIVER_NRS = range(0x40, 0xA0)

_KIND_BY_LABEL = {kind.label: kind for kind in KINDS}
_VISIBILITY_BY_VALUE = {visibility.value: visibility for visibility in Visibility}
_DRIVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_IOCTL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}")
_MATCH_NAME = re.compile(r"[!-~]{1,128}")
_NOTE = re.compile(r"[ -~]{0,200}")

_T = TypeVar("_T")


def parse_table(text: str, source: str) -> DriverTable:
    """The table that `text` describes; `source` is the file it came from, for errors and listings."""
    top = _Section(_parse_toml(text, source), source, "")
    visibility = _Section(top.take("visibility", dict), source, "visibility.")
    table = DriverTable(
        name=top.take_text("name", _DRIVER_NAME),
        subsystem=top.take_choice("subsystem", SUBSYSTEMS),
        uevent_drivers=top.take_texts("uevent_drivers", _MATCH_NAME),
        sysfs_names=top.take_texts("sysfs_names", _MATCH_NAME),
        ioctl_type=top.take_byte("ioctl_type"),
        visibility=_VISIBILITY_BY_VALUE[visibility.take_choice("submit", _VISIBILITY_BY_VALUE)],
        visibility_note=visibility.take_text("note", _NOTE, ""),
        ioctls=tuple(_parse_rules(top.take("ioctl", list), source)),
        source=source,
    )
    visibility.finish()
    top.finish()
    _check_table(table)
    return table


def _parse_toml(text: str, source: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # ValueError is TOMLDecodeError, which knows line and column, or an integer of thousands of digits.
        raise ConfigError(f"{source}: not valid TOML: {error}", "Correct the file or remove it") from error


def _parse_rules(entries: list[object], source: str) -> Iterator[IoctlRule]:
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise _refusal(source, f"ioctl[{index}]", entry, "a table with nr, kind and name")
        section = _Section(entry, source, f"ioctl[{index}].")
        name = section.take_text("name", _IOCTL_NAME)
        yield IoctlRule(name, section.take_byte("nr"), _KIND_BY_LABEL[section.take_choice("kind", _KIND_BY_LABEL)])
        section.finish()


def _check_table(table: DriverTable) -> None:
    """Refuse what is well-formed but can never match: it would look as if it counted."""
    if table.ioctl_type != DRM_IOCTL_TYPE:
        raise _refusal(table.source, "ioctl_type", table.ioctl_type, f"{DRM_IOCTL_TYPE:#x}, which all DRM calls have")
    is_core = table.name == CORE_NAME
    if not is_core and not table.uevent_drivers and not table.sysfs_names:
        raise _refusal(table.source, "uevent_drivers", [], "a driver, unless sysfs_names has a device name")
    kinds: dict[int, IoctlRule] = {}
    for rule in table.ioctls:
        if (rule.nr in DRIVER_NRS) is is_core:
            wanted = "0x00-0x3f or 0xa0-0xff, the core's" if is_core else "0x40-0x9f, with DRM_COMMAND_BASE added"
            raise _refusal(table.source, f"nr of {rule.name}", f"{rule.nr:#04x}", wanted)
        other = kinds.setdefault(rule.nr, rule)
        if other.kind is not rule.kind:
            raise ConfigError(
                f"{table.source}: {rule.name} and {other.name} have the same nr {rule.nr:#04x} but two kinds",
                "Keep one of them; calls are told apart by nr alone",
            )


def _refusal(source: str, key: str, value: object, wanted: str) -> ConfigError:
    try:
        shown = repr(value)
    except ValueError:
        shown = "too long a number"  # Python refuses to print integers of thousands of digits
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ConfigError(f"{source}: {key} is {shown}", f"It must be {wanted}")


class _Section:
    """One TOML table while it is read: keys are taken one by one, what is left at the end is unknown."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str) -> None:
        self._left = dict(values)
        self._source = source
        self._prefix = prefix

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self._left.pop(key, default)
        if value is None:
            raise ConfigError(f"{self._source}: {self._prefix}{key} is missing", f"Add it; its type is {kind.__name__}")
        if type(value) is not kind:  # not isinstance: true is no number here
            raise self._refuse(key, value, f"of type {kind.__name__}")
        return value

    def take_text(self, key: str, pattern: re.Pattern[str], default: str | None = None) -> str:
        return self._matching(key, self.take(key, str, default), pattern)

    def take_texts(self, key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(self._matching(key, value, pattern) for value in self.take(key, list, []))

    def take_choice(self, key: str, choices: Iterable[str]) -> str:
        value = self.take(key, str)
        if value not in choices:
            raise self._refuse(key, value, f"one of {', '.join(choices)}")
        return value

    def take_byte(self, key: str) -> int:
        value = self.take(key, int)
        if value not in range(0x100):
            raise self._refuse(key, value, "from 0 to 255")
        return value

    def finish(self) -> None:
        for key in sorted(self._left):
            raise ConfigError(
                f"{self._source}: unknown key {(self._prefix + key)[:80]!r}",
                "Keys are name, subsystem, uevent_drivers, sysfs_names, ioctl_type, visibility (submit, note) "
                "and ioctl (nr, kind, name)",
            )

    def _matching(self, key: str, value: object, pattern: re.Pattern[str]) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self._refuse(key, value, f"text that matches {pattern.pattern}")
        return value

    def _refuse(self, key: str, value: object, wanted: str) -> ConfigError:
        return _refusal(self._source, self._prefix + key, value, wanted)
