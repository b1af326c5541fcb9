# SPDX-License-Identifier: Apache-2.0
"""The settings of every daemon: ONE table, read from flags and TOML files into one frozen value.

Owns the table SETTINGS; flags, TOML keys, the sample file and the man page come from it. Data comes from the command
line, then /etc/kubenpu/kubenpu.toml.d/*.toml (last name first), then /etc/kubenpu/kubenpu.toml, then the defaults:
the first that has a key wins. Refuses a value of the wrong type with file and line; an unknown key is only a warning,
so that a file may serve two versions.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubenpu import __version__
from kubenpu.config.toml_file import TomlFile, read_toml
from kubenpu.config.values import Value, ValueType, absolute_path, choice, list_of, switch, text, whole_number
from kubenpu.model.errors import ConfigError

log = logging.getLogger(__name__)
DEFAULT_FILE = Path("/etc/kubenpu/kubenpu.toml")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `key` is the dotted TOML key; the flag is the same with dashes."""

    key: str
    field: str
    type: ValueType
    default: Value
    help: str
    needs_restart: bool = True

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Settings:
    """What was decided. SETTINGS says what each field means; `str` paths may be empty."""

    run_directory: Path
    listen_addresses: tuple[str, ...]
    telemetry_path: str
    systemd_socket: bool
    web_config_file: str
    dbus_address: str
    varlink_address: str
    log_level: str
    log_format: str
    pin_directory: Path
    max_slots: int
    cri_sockets: tuple[Path, ...]
    cgroup_root: str
    pod_labels: tuple[str, ...]
    kubelet_socket: str
    retention_seconds: int
    clients_interval_seconds: int
    history_enabled: bool
    history_file: Path
    history_retention_days: int
    history_max_mib: int
    sysfs: Path
    drivers_directory: Path


LABEL_KEY = text(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}", "a key of a label", "KEY")  # 253 of a prefix, /, 63 of a name
LISTEN = text(r"[^\s/]*:[0-9]{1,5}|unix:/[^\x00-\x1f]+", "an address", "ADDRESS")
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "run_directory",
        "run_directory",
        absolute_path(),
        Path("/run/kubenpu"),
        "Where the daemons keep what must not survive a reboot: state of the hooks, names, sockets.",
    ),
    Setting(
        "web.listen_address",
        "listen_addresses",
        list_of(LISTEN, "a list of addresses such as :10074, [::1]:10074 or unix:/run/kubenpu/metrics.sock", least=1),
        (":10074",),
        "Addresses the metrics are served on; without a host on all of them. Not used when systemd passes sockets.",
    ),
    Setting(
        "web.telemetry_path",
        "telemetry_path",
        text(r"/(?!-/)[A-Za-z0-9._~/-]*", "a path such as /metrics, not below /-/"),
        "/metrics",
        "Path the metrics are served under.",
    ),
    Setting(
        "web.systemd_socket",
        "systemd_socket",
        switch(),
        False,
        "Serve on sockets that systemd passes (kubenpud-metrics.socket) and on nothing else.",
    ),
    Setting(
        "web.config.file",
        "web_config_file",
        text(r"(/[^\x00-\x1f]*)?", "an absolute path or nothing", "FILE"),
        "",
        "File with TLS, users and response headers, as Prometheus' exporters have it; what it says is read on change.",
    ),
    Setting(
        "dbus.address",
        "dbus_address",
        text(
            r"(system|unix:(path|abstract)=[A-Za-z0-9_/.%-]+)?",
            "system, an address such as unix:path=/run/bus, or nothing",
            "ADDRESS",
        ),
        "system",
        "Message bus to serve io.kubenpu on; empty: none.",
    ),
    Setting(
        "varlink.address",
        "varlink_address",
        text(r"(unix:/[^\x00-\x1f]+)?", "an address such as unix:/run/kubenpu/io.kubenpu.Node, or nothing"),
        "unix:/run/kubenpu/io.kubenpu.Node",
        "Socket to serve io.kubenpu.Node on, unless systemd passes one (kubenpud-varlink.socket); empty: none.",
    ),
    Setting(
        "log.level",
        "log_level",
        choice("debug", "info", "warn", "error"),
        "info",
        "Least level that is logged.",
        needs_restart=False,
    ),
    Setting(
        "log.format",
        "log_format",
        choice("logfmt", "json"),
        "logfmt",
        "How a log line is written.",
        needs_restart=False,
    ),
    Setting(
        "kernel.pin_directory",
        "pin_directory",
        absolute_path(),
        Path("/sys/fs/bpf/kubenpu"),
        "Directory of the BPF file system that the counters are pinned below.",
    ),
    Setting(
        "kernel.max_slots",
        "max_slots",
        whole_number(64, 65536),
        8192,
        "Counter cells, one per cgroup and device, made up to a power of two; fixed when kubenpu-probe first loads "
        "after a boot.",
    ),
    Setting(
        "identity.cri_sockets",
        "cri_sockets",
        list_of(absolute_path(), "a list of absolute paths"),
        (),
        "Sockets of the container runtimes to ask; empty: those of the known places that exist.",
        needs_restart=False,
    ),
    Setting(
        "identity.cgroup_root",
        "cgroup_root",
        text(r"(/[^\x00-\x1f]*)?", "an absolute path or nothing", "PATH"),
        "",
        "Mount point of the cgroup version 2 hierarchy; empty: as the mount table says.",
    ),
    Setting(
        "identity.pod_labels",
        "pod_labels",
        list_of(LABEL_KEY, "a list of keys such as team or example.com/cost-centre", most=16),
        (),
        "Labels or annotations of pods that reports can be summed up by, for teams and cost centres.",
        needs_restart=False,
    ),
    Setting(
        "identity.kubelet_socket",
        "kubelet_socket",
        text(r"(auto|/[^\x00-\x1f]*)?", "auto, an absolute path or nothing", "PATH"),
        "auto",
        "Socket on which the kubelet tells which devices it has given to whom; auto: that of the known places which "
        "exists; empty: it is not asked.",
        needs_restart=False,
    ),
    Setting(
        "ledger.retention_seconds",
        "retention_seconds",
        whole_number(1, 7 * 24 * 3600),
        600,
        "How long the series of a dead pod stay before they become part of the departed total.",
        needs_restart=False,
    ),
    Setting(
        "clients.interval_seconds",
        "clients_interval_seconds",
        whole_number(1, 60),
        15,
        "How often kubenpu-clients looks at device time and memory; what is used after the last look is not known.",
    ),
    Setting(
        "history.enabled",
        "history_enabled",
        switch(),
        True,
        "Store usage for reports.",
    ),
    Setting(
        "history.file",
        "history_file",
        absolute_path(),
        Path("/var/lib/kubenpu/usage.db"),
        "Where usage is stored.",
    ),
    Setting(
        "history.retention_days",
        "history_retention_days",
        whole_number(1, 3660),
        90,
        "How long usage is kept: by the minute for two days, then by the quarter of an hour.",
        needs_restart=False,
    ),
    Setting(
        "history.max_mib",
        "history_max_mib",
        whole_number(8, 1 << 20),
        256,
        "Size of the history in MiB above which the oldest usage is dropped before its time.",
        needs_restart=False,
    ),
    Setting("devices.sysfs", "sysfs", absolute_path(), Path("/sys"), "Where sysfs is; for tests and simulated nodes."),
    Setting(
        "devices.drivers_directory",
        "drivers_directory",
        absolute_path(),
        Path("/etc/kubenpu/drivers.d"),
        "Directory of the operator's own ioctl tables, which add to the built-in ones or replace them.",
        needs_restart=False,
    ),
)


def make_daemon_parser(prog: str = "kubenpud") -> argparse.ArgumentParser:
    """The command line of a daemon: every setting is a flag."""
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False, description="KubeNPU: who uses each accelerator.")
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    add_config_flag(parser)
    for setting in SETTINGS:
        repeatable = " Repeatable." if setting.type.many else ""
        hint = f"{setting.help}{repeatable} Default: {spell(setting.default)}".replace("%", "%%")
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.type.switch else {}
        form: dict[str, Any] = {"metavar": setting.type.metavar, **alone}
        parser.add_argument(setting.flag, dest=setting.key, action="append", help=hint, **form)
    return parser


def parse_daemon_arguments(arguments: Sequence[str] | None = None, prog: str = "kubenpud") -> argparse.Namespace:
    """Exits as argparse does on --help, --version, misuse."""
    return make_daemon_parser(prog).parse_args(arguments)


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """The one flag that every program with settings has."""
    parser.add_argument(
        "--config.file", dest="config_file", type=Path, metavar="FILE", help=f"settings; default: {DEFAULT_FILE}"
    )


def read_settings(options: argparse.Namespace) -> Settings:
    """Flags over files over defaults. Raises ConfigError; logs a warning for each unknown key."""
    values: dict[str, Any] = {setting.field: setting.default for setting in SETTINGS}
    for file in _read_files(options.config_file):
        values |= _from_file(file)
    values |= _from_flags(options)
    return Settings(**values)


def _read_files(given: Path | None) -> Iterator[TomlFile]:
    """The file, if it is there or was asked for, then its drop-ins, so that the later ones win."""
    path = given or DEFAULT_FILE
    main = read_toml(path)
    if main is not None:
        yield main
    elif given is not None:
        raise ConfigError(f"{path} does not exist", "Name another --config.file, or none")
    for drop_in in sorted(path.with_name(path.name + ".d").glob("*.toml")):
        extra = read_toml(drop_in)
        if extra is not None:
            yield extra


def _from_file(file: TomlFile) -> dict[str, Value]:
    known = {setting.key: setting for setting in SETTINGS}
    values: dict[str, Value] = {}
    for key, value in file.entries(known.keys()):
        setting = known.get(key)
        if setting is None:
            import difflib  # noqa: PLC0415 - 0.15 MiB, for a mistake that is hardly ever made

            near = difflib.get_close_matches(key, known, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            log.warning("%s: unknown key %s is ignored%s", file.where(key), json.dumps(key), hint)
        else:
            values[setting.field] = _check(setting, value, f"{file.where(key)}: {key}")
    return values


def _from_flags(options: argparse.Namespace) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for setting in SETTINGS:
        texts: list[str] | None = getattr(options, setting.key, None)
        if texts is not None:
            given = [setting.type.from_text(text) for text in texts]
            values[setting.field] = _check(setting, given if setting.type.many else given[-1], setting.flag)
    return values


def _check(setting: Setting, value: object, where: str) -> Value:
    checked = setting.type.check(value)
    if checked is None:
        found = repr(value)
        found = found if len(found) <= 80 else found[:77] + "..."
        raise ConfigError(f"{where}: expected {setting.type.expected}, found {found}")
    return checked


def render_sample() -> str:
    """The table as a TOML file in which every setting is commented out and has its default."""
    lines = ["# Settings of KubeNPU and their defaults; kubenpu.toml(5). A change needs a restart unless noted.", ""]
    section = ""
    for setting in SETTINGS:
        table, _, name = setting.key.rpartition(".")
        if table != section:
            lines += [f"[{table}]", ""]
            section = table
        lines += [f"# {setting.help}", f"# Expected: {setting.type.expected}."]
        lines += [] if setting.needs_restart else ["# Read again on reload."]
        lines += [f"#{name} = {spell(setting.default)}", ""]
    return "\n".join(lines)


def spell(value: Value) -> str:
    """A default as TOML writes it."""
    match value:
        case tuple():
            return "[" + ", ".join(map(spell, value)) + "]"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            return json.dumps(str(value))
