# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl doctor`: what this node has of what counting needs, and what to do about the rest.

The checks are in doctor_checks.py and doctor_daemon.py, this is the command around them. Needs neither root nor daemon.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubenpu.cli.devices import SIMULATED_MARK
from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_daemon import find_urls
from kubenpu.cli.doctor_findings import FAIL, Examination, Finding, examine
from kubenpu.cli.output import add_format_arguments, print_json, print_note, print_table
from kubenpu.config.settings import SETTINGS, Settings, add_config_flag, read_settings
from kubenpu.config.unit_flags import unit_flags
from kubenpu.model.errors import ConfigError

_HEADER = ("STATUS", "CHECK", "FOUND", "NEEDED")
_REMEDY_HEADER = ("CHECK", "REMEDY")
_PLACES = (
    ("--sysfs", "sysfs", "where sysfs is"),
    ("--drivers-dir", "drivers_directory", "directory of your own driver tables"),
    ("--run-dir", "run_directory", "run directory of kubenpu-probe and kubenpud"),
    ("--pin-dir", "pin_directory", "where the counters are pinned"),
)
"""Flag, the setting it stands in for, help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check whether this node can count accelerator calls per pod, and does. Exit code 1 when a check fails; a "
        "warning is something to know. Works without root and without the daemon, but sees more with them."
    )
    add_format_arguments(parser)
    add_config_flag(parser)
    for flag, name, text in _PLACES:
        parser.add_argument(flag, dest=name, type=Path, metavar="PATH", help=f"{text} (default: as the settings say)")
    parser.add_argument(
        "--url",
        type=_metrics_url,
        help="metrics address of kubenpud, or unix:SOCKET:PATH (default: as settings and ARGS of the service say)",
    )
    parser.set_defaults(func=run)


def _metrics_url(text: str) -> str:
    if re.fullmatch("unix:/.+:/.*", text):
        return text
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # above 65535, or not a number
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            "give one like http://127.0.0.1:10074/metrics or unix:/run/kubenpu/metrics.sock:/metrics"
        )
    return text


def run(args: argparse.Namespace) -> int:
    node = _examination(args)
    findings = examine(node, CHECKS)
    if args.json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print_tables(findings)
    if (node.settings.sysfs / SIMULATED_MARK).exists():
        print_note("simulated node: its devices, pods and calls do not exist")
    failed = sum(finding.status == FAIL for finding in findings)
    if failed:
        print_note(f"{failed} of {len(findings)} checks failed")
    return 1 if failed else 0


def _examination(args: argparse.Namespace) -> Examination:
    """Settings that cannot be used are a finding; the other checks then look at the default places."""
    wrong: ConfigError | None = None
    places = {name: getattr(args, name) for _, name, _ in _PLACES if getattr(args, name) is not None}
    try:
        settings = read_settings(argparse.Namespace(config_file=args.config_file) if args.config_file else unit_flags())
    except ConfigError as error:
        wrong = error
        defaults: dict[str, Any] = {setting.field: setting.default for setting in SETTINGS}
        settings = Settings(**defaults)
    return Examination(replace(settings, **places), (args.url,) if args.url else find_urls(settings), wrong)


def _print_tables(findings: Iterable[Finding]) -> None:
    """What was found, then what to do: remedies are sentences and would make one table too wide."""
    print_table(_HEADER, [(f.status, f.check, f.found, f.needed) for f in findings])
    remedies = [(f.check, f.remedy) for f in findings if f.remedy]
    if remedies:
        print()
        print_table(_REMEDY_HEADER, remedies)
