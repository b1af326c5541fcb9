# SPDX-License-Identifier: Apache-2.0
"""Rules for Python that linter and type checker do not know: docstrings, size, broad handlers, sleeps in tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.rules.tree import files, parsed, python_nodes, shown

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 40
# Longer ones, each with the reason why cutting it would make it worse.
LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}
BROAD = {"Exception", "BaseException"}


@pytest.mark.parametrize("path", files(".py"), ids=shown)
def test_module_says_what_it_is(path: Path) -> None:
    """A module with code has a docstring that ends like a sentence; an empty __init__.py needs none."""
    module = parsed(path)
    if module.body:
        text = ast.get_docstring(module)
        assert text
        assert "." in text


def test_modules_are_short() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in files(".py")}
    assert {name: n for name, n in lengths.items() if n > MAX_MODULE_LINES and name not in LONG_MODULES} == {}


def test_functions_are_short() -> None:
    found = {}
    for path, node in python_nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            name = f"{shown(path)}:{node.name}"
            if lines > MAX_FUNCTION_LINES and name not in LONG_FUNCTIONS:
                found[name] = lines
    assert found == {}


def test_no_broad_handler() -> None:
    """Not even one that the linter was told to overlook."""
    found = []
    for path, node in python_nodes():
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(kind is None or ast.unparse(kind) in BROAD for kind in kinds):
                found.append(f"{shown(path)}:{node.lineno}")
    assert found == []


def test_tests_do_not_sleep() -> None:
    """They wait for a condition with a deadline; polling is what fixtures and fakes are for."""
    found = [
        f"{shown(path)}:{node.lineno}"
        for path, node in python_nodes("tests")
        if path.name.startswith("test_")
        and isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"sleep", "time.sleep", "asyncio.sleep"}
    ]
    assert found == []


def test_names_say_something() -> None:
    assert [shown(path) for path in files(".py") if path.stem in VAGUE_NAMES] == []
