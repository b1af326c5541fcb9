# SPDX-License-Identifier: Apache-2.0
"""The driver tables of this node: those that ship in devices/drivers and the operator's from /etc/kubenpu/drivers.d.

An operator's file adds a table or replaces the one of the same name, the core's too. A file that cannot be used is
left out and reported beside the others; it never takes them down. Holds no file open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path

from kubenpu.devices.schema import CORE_NAME, DRIVER_NRS, parse_table
from kubenpu.model.device import DriverTable
from kubenpu.model.errors import ConfigError
from kubenpu.model.kinds import Kind

OPERATOR_DIR = Path("/etc/kubenpu/drivers.d")
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadedTables:
    """`tables` in order of precedence, without the core's; `errors` has one entry per file that was left out."""

    tables: tuple[DriverTable, ...]
    core: DriverTable
    errors: tuple[ConfigError, ...]

    def by_name(self, name: str | None) -> DriverTable | None:
        """The table of Device.vendor; None when there is none."""
        return next((table for table in self.tables if table.name == name), None)


def load_tables(operator_dir: Path = OPERATOR_DIR) -> LoadedTables:
    """Read all tables. An operator's file comes before ours and a later file before an earlier one."""
    operator, errors = _read_operator_tables(operator_dir)
    by_name: dict[str, DriverTable] = {}
    for table in (*reversed(operator), *_read_builtin_tables()):
        by_name.setdefault(table.name, table)
    core = by_name.pop(CORE_NAME)
    return LoadedTables(tuple(by_name.values()), core, tuple(errors))


def match_table(
    tables: Iterable[DriverTable], subsystem: str, driver: str | None, sysfs_name: str
) -> DriverTable | None:
    """The first table that knows the driver bound to a device or, where that says nothing, the device's name."""
    candidates = [table for table in tables if table.subsystem == subsystem]
    for table in candidates:
        if driver in table.uevent_drivers:
            return table
    for table in candidates:
        if any(fnmatchcase(sysfs_name, pattern) for pattern in table.sysfs_names):
            return table
    return None


def rule_kinds(core: DriverTable, table: DriverTable | None) -> bytes:
    """The Kind of every ioctl number of one device, 256 bytes. Numbers that no table lists are OTHER."""
    kinds = bytearray([Kind.OTHER]) * 256
    for rule in core.ioctls:
        if rule.nr not in DRIVER_NRS:
            kinds[rule.nr] = rule.kind
    for rule in table.ioctls if table else ():
        if rule.nr in DRIVER_NRS:
            kinds[rule.nr] = rule.kind
    return bytes(kinds)


def _read_builtin_tables() -> Iterator[DriverTable]:
    files = resources.files("kubenpu.devices.drivers").iterdir()
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(".toml"):
            yield parse_table(file.read_text(encoding="utf-8"), f"kubenpu/devices/drivers/{file.name}")


def _read_operator_tables(directory: Path) -> tuple[list[DriverTable], list[ConfigError]]:
    tables: list[DriverTable] = []
    errors: list[ConfigError] = []
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".toml" and path.name[0] != ".")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [ConfigError(f"{directory}: {error.strerror}", "Make it a directory that kubenpu may read")]
    for path in paths:
        try:
            tables.append(parse_table(_read_text(path), str(path)))
        except ConfigError as error:
            errors.append(error)
    return tables, errors


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: not a regular file", "Put a driver table there or remove it")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Make the file readable") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes", "A driver table is a few kilobytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8", "TOML files are UTF-8") from error
