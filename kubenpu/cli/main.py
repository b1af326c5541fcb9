# SPDX-License-Identifier: Apache-2.0
"""kubenpuctl: the command line. Holds the list of subcommands and what they have in common, such as EXIT_CODES."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from kubenpu import __version__
from kubenpu.cli import devices, doctor, drivers, pods, whois
from kubenpu.cli.output import print_note
from kubenpu.model.errors import KubeNpuError

EXIT_CODES = {
    0: "done",
    1: "the thing asked about is not well",
    2: "usage",
    3: "the daemon cannot be reached",
}
COMMANDS = (devices, drivers, whois, pods, doctor)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubenpuctl",
        description="Who used each accelerator of this node, how much, how long and how well.",
        epilog=f"Exit codes: {', '.join(f'{code} {text}' for code, text in EXIT_CODES.items())}.",
    )
    parser.add_argument("--version", action="version", version=f"kubenpuctl {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    try:
        code = int(args.func(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except KubeNpuError as error:
        print_note(str(error))
        return 1
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
