# SPDX-License-Identifier: Apache-2.0
"""The driver tables of this node: those that ship in devices/drivers and the operator's from /etc/kubenpu/drivers.d.

An operator's file adds a table or replaces the one of the same name, the core's too. A file that cannot be used is
left out and reported beside the others; it never takes them down. Holds no file open.

Whoever needs all calls of all drivers asks load_tables(). The service does not: parsing them takes as long as the rest
of a scan many times over, so it reads load_heads(), which tell what fits a device, and complete() for what it found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from kubenpu.devices.schema import CORE_NAME, DRIVER_NRS, parse_table, parse_version
from kubenpu.model.device import WHATS_OF_CALLS, Argument, Device, DriverTable, Interface, IoctlRule
from kubenpu.model.errors import ConfigError
from kubenpu.model.files import read_regular_file
from kubenpu.model.kinds import ELSEWHERE, Kind
from kubenpu.model.sample import CommandTable

_SHIPPED_DIR = Path(__file__).parent / "drivers"  # importlib.resources would be 0.6 MiB
OPERATOR_DIR = Path("/etc/kubenpu/drivers.d")
_SHIPPED = "kubenpu/devices/drivers"
_CORE_STEM = "core"
_SHOWN_VERSION = 40
_MAX_BYTES = 1 << 18  # of an operator's table; ours have 8 KiB at most
# In our own files, which tests hold to it: the list of calls and what is said of arguments, up to the next blank line.
_CALLS = re.compile(r"^(?:ioctl = \[|\[(?:interface\.)?argument\.).*?(?:\n\n|\Z)", re.M | re.S)

Installed = Callable[[str], str | None]
"""The version of a module; None when it is not loaded or has none."""


@dataclass(frozen=True, slots=True)
class LoadedTables:
    """`tables` in order of precedence, without the core's; `errors` has one entry per file that was left out.

    `notes` say what is as it should be and yet may not be what the operator meant.
    """

    tables: tuple[DriverTable, ...]
    core: DriverTable
    errors: tuple[ConfigError, ...]
    notes: tuple[str, ...] = ()

    def by_name(self, name: str | None) -> DriverTable | None:
        """The table of Device.vendor; None when there is none."""
        return next((table for table in self.tables if table.name == name), None)

    def calls(self, device: Device) -> tuple[IoctlRule, ...]:
        """Of a device of drm or accel, beside the core's."""
        table = self.by_name(device.vendor)
        interface = table.interface(device.subsystem) if table else None
        return interface.ioctls if interface else ()

    @property
    def unknown_releases(self) -> tuple[str, ...]:
        """Once completed: drivers whose calls are not known, all of which count as kind other."""
        found = ((table.name, table.unknown_release) for table in self.tables if table.unknown_release)
        return tuple(f"{name}: the driver table does not know {unknown}" for name, unknown in found)


def load_tables(operator_dir: Path = OPERATOR_DIR) -> LoadedTables:
    """Read all tables. An operator's file comes before ours and a later file before an earlier one."""
    return _load(operator_dir, whole=True)


def load_heads(operator_dir: Path = OPERATOR_DIR) -> LoadedTables:
    """As load_tables(), but our own tables, the core's apart, have no calls."""
    return _load(operator_dir, whole=False)


def complete(loaded: LoadedTables, names: Collection[str | None], installed: Installed) -> LoadedTables:
    """With the calls of the tables called so, as the release that is loaded numbers them."""
    tables = (_in_force(_whole(table), installed) if table.name in names else table for table in loaded.tables)
    return replace(loaded, tables=tuple(tables))


def _whole(table: DriverTable) -> DriverTable:
    return _read_shipped_table(table.name, whole=True) if table.source == _shipped_source(table.name) else table


def _in_force(table: DriverTable, installed: Installed) -> DriverTable:
    """Of a release that the table does not know nobody can say what its calls are, hence nor what they show."""
    calls = [_calls_in_force(interface, installed) for interface in table.interfaces]
    interfaces = [replace(each, ioctls=found or ()) for each, found in zip(table.interfaces, calls, strict=True)]
    table = replace(table, interfaces=tuple(interfaces))
    if None not in calls:
        return table
    module = table.interfaces[calls.index(None)].releases[0].module
    version = installed(module)
    unknown = f"{module} without a version" if version is None else f"release {version[:_SHOWN_VERSION]!r} of {module}"
    told = {what: seen for what, seen in table.visibility.items() if what not in WHATS_OF_CALLS}
    return replace(table, visibility=told, unknown_release=unknown)


def _calls_in_force(interface: Interface, installed: Installed) -> tuple[IoctlRule, ...] | None:
    """The calls of the release that is loaded, None when nothing is said of it."""
    for release in interface.releases:
        version = parse_version(installed(release.module) or "")
        if version is not None and release.first <= version <= release.last:
            return release.ioctls
    return interface.ioctls if interface.ioctls or not interface.releases else None


def _load(operator_dir: Path, whole: bool) -> LoadedTables:
    operator, errors = _read_operator_tables(operator_dir)
    by_name: dict[str, DriverTable] = {}
    notes = list(_find_ignored(operator_dir))
    for table in (*reversed(operator), *_read_shipped_tables(whole)):
        used = by_name.setdefault(table.name, table)
        if used is not table:
            notes.append(f"{used.source} replaces the table {table.name} of {table.source}")
    core = by_name.pop(CORE_NAME)
    notes += _find_rivals(by_name.values())
    return LoadedTables(tuple(by_name.values()), core, tuple(errors), tuple(notes))


def match_table(
    tables: Iterable[DriverTable], subsystem: str, driver: str | None, sysfs_name: str
) -> DriverTable | None:
    """The first table that knows the driver bound to a device or, where that says nothing, the device's name."""
    candidates = [(table, table.interface(subsystem)) for table in tables]
    for table, interface in candidates:
        if interface and driver in interface.uevent_drivers:
            return table
    for table, interface in candidates:
        if interface and any(fnmatchcase(sysfs_name, pattern) for pattern in interface.sysfs_names):
            return table
    return None


def rule_kinds(core: DriverTable, calls: Iterable[IoctlRule]) -> bytes:
    """The Kind of every ioctl number of one DRM or accel device, 256 bytes. OTHER where no table lists it,
    ELSEWHERE for early calls."""
    kinds = bytearray([Kind.OTHER]) * 256
    for rule in (rule for interface in core.interfaces for rule in interface.ioctls):
        if rule.nr not in DRIVER_NRS:
            kinds[rule.nr] = rule.kind
    for rule in calls:
        if rule.nr in DRIVER_NRS:
            kinds[rule.nr] = ELSEWHERE if rule.early else rule.kind
    return bytes(kinds)


def rule_arguments(core: DriverTable, calls: Iterable[IoctlRule]) -> dict[int, Argument]:
    """Where the arguments of such a device have more to say, by ioctl number."""
    of_core = (rule for interface in core.interfaces for rule in interface.ioctls if rule.nr not in DRIVER_NRS)
    rules = (*of_core, *(rule for rule in calls if rule.nr in DRIVER_NRS and not rule.early))
    return {rule.nr: rule.argument for rule in rules if rule.argument is not None}


def command_tables(calls: Iterable[IoctlRule]) -> tuple[CommandTable, ...]:
    """The same for other devices, whose calls have several type bytes: a table for each, before them one for each group
    of whole commands that agree in all but the number."""
    by_type: dict[int, list[IoctlRule]] = {}
    whole: dict[int, list[IoctlRule]] = {}
    for rule in calls:
        group, value = (by_type, rule.type) if rule.cmd is None else (whole, rule.cmd >> 8)
        group.setdefault(value, []).append(rule)
    return (
        *(_command_table(0xFFFFFF, value, (*by_type.get(value & 0xFF, ()), *rules)) for value, rules in whole.items()),
        *(_command_table(0xFF, value, rules) for value, rules in by_type.items()),
    )


def early_commands(calls: Iterable[IoctlRule]) -> tuple[CommandTable, ...]:
    """What drm_ioctl never sees of the calls of a DRM device, if there is anything: their drivers look at the number
    alone, whatever the type byte is."""
    rules = [rule for rule in calls if rule.early]
    return (_command_table(0, 0, rules, ELSEWHERE),) if rules else ()


def _command_table(mask: int, value: int, rules: Iterable[IoctlRule], unlisted: int = Kind.OTHER) -> CommandTable:
    """Of these rules; a later one takes the place of an earlier."""
    by_nr = {rule.nr: rule for rule in rules}
    kinds = bytes(by_nr[nr].kind if nr in by_nr else unlisted for nr in range(0x100))
    arguments = {nr: rule.argument for nr, rule in by_nr.items() if rule.argument is not None}
    return CommandTable(mask, value, kinds, arguments)


def _read_shipped_tables(whole: bool) -> Iterator[DriverTable]:
    for stem in sorted(file.stem for file in _SHIPPED_DIR.glob("*.toml")):
        yield _read_shipped_table(stem, whole or stem == _CORE_STEM)


def _read_shipped_table(stem: str, whole: bool) -> DriverTable:
    text = (_SHIPPED_DIR / f"{stem}.toml").read_text(encoding="utf-8")
    return parse_table(text if whole else _CALLS.sub("", text), _shipped_source(stem))


def _shipped_source(stem: str) -> str:
    return f"{_SHIPPED}/{stem}.toml"


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


def _find_ignored(directory: Path) -> Iterator[str]:
    """What is in the operator's directory and is not looked at."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        if directory != OPERATOR_DIR:
            yield f"{directory} does not exist"
        return
    except OSError:
        return  # an error of _read_operator_tables() already
    for name in names:
        if not name.endswith(".toml") or name[0] == ".":
            yield f"{directory}/{name} is ignored: a driver table is called NAME.toml"


def _find_rivals(tables: Iterable[DriverTable]) -> Iterator[str]:
    """Tables that are for the same driver as one before them."""
    first: dict[tuple[str, str], DriverTable] = {}
    for table in tables:
        for interface in table.interfaces:
            for driver in interface.uevent_drivers:
                used = first.setdefault((interface.subsystem, driver), table)
                if used is not table:
                    yield f"{driver}: table {used.name} of {used.source} comes before {table.name} of {table.source}"


def _read_text(path: Path) -> str:
    try:
        data = read_regular_file(path, _MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Put a driver table there that can be read") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8", "TOML files are UTF-8") from error
