# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl whois`: whose work a process or a cgroup path is, and how that was decided.

Reads /proc/PID/cgroup, and as root what docker, podman and nerdctl keep of their containers, so it needs no daemon, no
privilege and no container runtime: it shows what the path claims. The paths of /proc are as this process's cgroup
namespace sees them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.identity.cgroup import explain, maker, parse_path
from kubenpu.identity.containers import Containers, PlainContainer
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import PathIdentity

_HEADER = ("KIND", "HOST KIND", "POD UID", "CONTAINER", "UNIT", "REASON", "PATH")
_HOW = ("DRIVER", "RUNTIME", "QOS", "IMAGE")
_WIDE_HEADER = (*_HEADER[:2], *_HOW, *_HEADER[2:])
_V2_PREFIX = "0::"


class _Answer(NamedTuple):
    """`path` is what was asked for; `identity` is whose it is, which may be who works above it. `unit` and `image` as
    the container's engine has them, where it could be asked."""

    path: str
    identity: PathIdentity
    unit: str | None
    image: str | None
    reason: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say whose work a process or a cgroup path is, and how that was decided. UNIT is what work outside pods is "
        "accounted to. Only the path is looked at, as root also the state of docker, podman and nerdctl; kubenpud also "
        "asks the container runtime."
    )
    parser.add_argument("targets", nargs="*", metavar="PID|CGROUP-PATH", help="a path begins with /")
    parser.add_argument("--stdin", action="store_true", help="also read targets from standard input, one per line")
    add_format_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if not args.targets and not args.stdin:
        print_note("whois needs a PID or a cgroup path, or --stdin")
        return 2
    containers = Containers()
    answers: list[_Answer] = []
    failed = False
    for target in _targets(args):
        try:
            answers.append(_answer(_path_of(target), containers))
        except SourceError as error:
            failed = True
            print_note(str(error))
    if args.json:
        print_json([_to_json(answer) for answer in answers])
    elif answers:
        wide = is_wide(args)
        print_table(_WIDE_HEADER if wide else _HEADER, [_row(answer, wide) for answer in answers])
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


def _answer(path: str, containers: Containers) -> _Answer:
    """What the path claims; and where kubenpud does not take it at its word, whose work it is instead."""
    identity, above = parse_path(path), maker(path)
    reason = explain(identity)
    if above is not None and above.unit != identity.unit:
        found = containers.find(above)
        reason += f"; not believed below {_unit(above, found)}, whose work it is"
        identity = above
    else:
        found = containers.find(identity)
    return _Answer(path, identity, _unit(identity, found), found.image if found and found.image else None, reason)


def _unit(identity: PathIdentity, found: PlainContainer | None) -> str | None:
    return found.unit if found else identity.unit


def _row(answer: _Answer, wide: bool) -> tuple[str | None, ...]:
    identity = answer.identity
    container = identity.container_id
    how = (identity.driver, identity.runtime, identity.qos, answer.image) if wide else ()
    return (
        identity.kind.value,
        _host_kind(identity),
        *how,
        identity.pod_uid,
        container if wide or container is None else container[:12],
        answer.unit,
        answer.reason,
        answer.path,
    )


def _host_kind(identity: PathIdentity) -> str | None:
    return identity.host_kind.value if identity.host_kind else None


def _to_json(answer: _Answer) -> dict[str, str | None]:
    identity = answer.identity
    return {
        "path": answer.path,
        "kind": identity.kind.value,
        "driver": identity.driver or "none",
        "runtime": identity.runtime,
        "pod_uid": identity.pod_uid,
        "container_id": identity.container_id,
        "qos": identity.qos,
        "unit": answer.unit,
        "host_kind": _host_kind(identity),
        "image": answer.image,
        "reason": answer.reason,
    }
