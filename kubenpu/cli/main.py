# SPDX-License-Identifier: Apache-2.0
"""kubenpuctl: the command line. Holds the list of subcommands and what they have in common, such as EXIT_CODES.

A subcommand's module is imported only when it is asked for, so that none is slower, or needs more, because of another.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Container, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from kubenpu import __version__
from kubenpu.cli.output import print_note
from kubenpu.model.errors import ConfigError, KubeNpuError, UnreachableError

EXIT_CODES = {
    0: "done",
    1: "the thing asked about is not well",
    2: "usage or a wrong file named there",
    3: "the daemon cannot be reached",
}


class Command(NamedTuple):
    """A subcommand: `load` gives the module, whose add_arguments() fills its parser and names its function."""

    name: str
    help: str
    load: Callable[[], ModuleType]


COMMANDS = (
    Command("devices", "list the accelerators of this node", lambda: import_module("kubenpu.cli.devices")),
    Command(
        "drivers",
        "list the driver tables and what each driver lets one see",
        lambda: import_module("kubenpu.cli.drivers"),
    ),
    Command("whois", "say whose work a process or cgroup path is", lambda: import_module("kubenpu.cli.whois")),
    Command("pods", "list what each workload used", lambda: import_module("kubenpu.cli.pods")),
    Command("top", "show live what each workload does", lambda: import_module("kubenpu.cli.top")),
    Command("watch", "print what each workload does, line by line", lambda: import_module("kubenpu.cli.watch")),
    Command("report", "sum up what was used, and what it cost", lambda: import_module("kubenpu.cli.report")),
    Command("doctor", "check whether this node can count, and does", lambda: import_module("kubenpu.cli.doctor")),
)
ALL = tuple(command.name for command in COMMANDS)


def make_parser(wanted: Container[str] = ALL) -> argparse.ArgumentParser:
    """The whole command line; subcommands that are not wanted have their name only."""
    parser = argparse.ArgumentParser(
        prog="kubenpuctl",
        description="Who used each accelerator of this node, how much, how long and how well.",
        epilog=f"Exit codes: {', '.join(f'{code} {text}' for code, text in EXIT_CODES.items())}.",
    )
    parser.add_argument("--version", action="version", version=f"kubenpuctl {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help)
        if command.name in wanted:
            command.load().add_arguments(subparser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    args = make_parser(words).parse_args(words)
    try:
        code = int(args.func(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except KubeNpuError as error:
        print_note(str(error))
        return 3 if isinstance(error, UnreachableError) else 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:  # `| head` is no error; nothing more can be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # what is printed cannot be written: a full disk, a closed descriptor
        print_note(f"cannot write: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
