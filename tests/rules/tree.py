# SPDX-License-Identifier: Apache-2.0
"""Which files the repository consists of, and how they are read. Knows no rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORIES = (".ci", "bpf", "kubenpu", "packaging", "systemd", "tests")
FILES = (".gitignore", "ARCHITECTURE.md", "HACKING.md", "LICENSE", "Makefile", "NEWS.md", "README.md", "pyproject.toml")


@cache
def all_files() -> tuple[Path, ...]:
    """Every file that belongs to the repository, without what is made from others."""
    found = [ROOT / name for name in FILES]
    for directory in DIRECTORIES:
        found += (path for path in sorted((ROOT / directory).rglob("*")) if path.is_file() and not _is_made(path))
    return tuple(found)


def _is_made(path: Path) -> bool:
    return "__pycache__" in path.parts or path.name.endswith("_pb2.py") or path.name.startswith(".")


def files(*endings: str, below: str = "") -> list[Path]:
    """The files below a directory whose names end so."""
    return [path for path in all_files() if path.is_relative_to(ROOT / below) and path.name.endswith(endings)]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def python_nodes(below: str = "") -> Iterator[tuple[Path, ast.AST]]:
    """Every node of every Python file."""
    for path in files(".py", below=below):
        for node in ast.walk(parsed(path)):
            yield path, node


def table_below(text: str, heading: str) -> list[tuple[str, ...]]:
    """The rows of the first Markdown table below a heading, without its header."""
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"no heading {heading!r}"
    lines = rest.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
    return rows
