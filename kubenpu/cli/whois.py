# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl whois`: whose work a process or a cgroup path is, and how that was decided.

Reads /proc/PID/cgroup and nothing else, so it needs no daemon, no privilege and no container runtime: it shows what
the path claims. The paths of /proc are as this process's cgroup namespace sees them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.identity.cgroup import explain, maker, parse_path
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import PathIdentity

_HEADER = ("KIND", "POD UID", "CONTAINER", "UNIT", "REASON", "PATH")
_WIDE_HEADER = ("KIND", "DRIVER", "RUNTIME", "QOS", "POD UID", "CONTAINER", "UNIT", "REASON", "PATH")
_V2_PREFIX = "0::"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say whose work a process or a cgroup path is, and how that was decided. UNIT is what work outside pods is "
        "accounted to. Only the path is looked at; kubenpud also asks the container runtime."
    )
    parser.add_argument("targets", nargs="*", metavar="PID|CGROUP-PATH", help="a path begins with /")
    parser.add_argument("--stdin", action="store_true", help="also read targets from standard input, one per line")
    add_format_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if not args.targets and not args.stdin:
        print_note("whois needs a PID or a cgroup path, or --stdin")
        return 2
    identities: list[PathIdentity] = []
    failed = False
    for target in _targets(args):
        try:
            identities.append(parse_path(_path_of(target)))
        except SourceError as error:
            failed = True
            print_note(str(error))
    if args.json:
        print_json([_to_json(identity) for identity in identities])
    elif identities:
        wide = is_wide(args)
        print_table(_WIDE_HEADER if wide else _HEADER, [_row(identity, wide) for identity in identities])
    return 1 if failed else 0


def parse_proc_cgroup(text: str) -> str | None:
    """The cgroup2 path in the text of /proc/PID/cgroup, None when the process is in cgroup v1 hierarchies only."""
    for line in text.split("\n"):
        if line.startswith(_V2_PREFIX):
            return line.removeprefix(_V2_PREFIX)
    return None


def _targets(args: argparse.Namespace) -> Iterator[str]:
    yield from args.targets
    if args.stdin:
        for line in sys.stdin.buffer if sys.stdin is not None else ():
            if target := os.fsdecode(line.rstrip(b"\r\n")):
                yield target


def _path_of(target: str) -> str:
    if target.startswith("/"):
        return target
    if not (target.isascii() and target.isdecimal()):
        raise SourceError(f'"{target[:200]}" is neither a PID nor a cgroup path', "A cgroup path begins with /")
    try:
        text = os.fsdecode(Path("/proc", target, "cgroup").read_bytes())
    except OSError as error:
        raise SourceError(f"no cgroup is known for process {target[:20]}: {error.strerror}") from error
    path = parse_proc_cgroup(text)
    if path is None:
        raise SourceError(
            f"process {target} is in cgroup v1 hierarchies only", "Boot the node with the unified cgroup hierarchy"
        )
    return path


def _row(identity: PathIdentity, wide: bool) -> tuple[str | None, ...]:
    container = identity.container_id
    how = (identity.driver, identity.runtime, identity.qos) if wide else ()
    return (
        identity.kind.value,
        *how,
        identity.pod_uid,
        container if wide or container is None else container[:12],
        identity.unit,
        _reason(identity),
        identity.path,
    )


def _reason(identity: PathIdentity) -> str:
    """How it was decided; and where kubenpud does not take the path at its word, whose work it is instead."""
    above = maker(identity.path)
    if above is None or above.unit is None or identity.unit == above.unit:
        return explain(identity)
    return f"{explain(identity)}; not believed below {above.unit}, whose work it is"


def _to_json(identity: PathIdentity) -> dict[str, str | None]:
    return {
        "path": identity.path,
        "kind": identity.kind.value,
        "driver": identity.driver or "none",
        "runtime": identity.runtime,
        "pod_uid": identity.pod_uid,
        "container_id": identity.container_id,
        "qos": identity.qos,
        "unit": identity.unit,
        "reason": _reason(identity),
    }
