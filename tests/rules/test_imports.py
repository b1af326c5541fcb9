# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the table of ARCHITECTURE.md as data, compared with every import there is."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rules.tree import ROOT, files, parsed, python_nodes, shown, table_below


@dataclass(frozen=True, slots=True)
class May:
    """What a package may import besides itself and the standard library. `model.errors` stands for that module only."""

    own: tuple[str, ...] = ()
    third_party: tuple[str, ...] = ()


PACKAGES = {
    "model": May(),
    "config": May(("model",)),
    "ledger": May(("model",)),
    "history": May(("model",)),
    "kernel": May(("model",), ("bcc",)),
    "devices": May(("model",)),
    "identity": May(("model",), ("grpc",)),
    "api": May(("model",)),
    "exporters": May(("model", "api"), ("bcrypt", "dbus_next", "prometheus_client", "varlink", "yaml")),
    "cli": May(
        (
            "model",
            "config",
            "api",
            "devices.discovery",
            "devices.tables",
            "exporters.dbus_client",
            "exporters.scrape",
            "history.report",
            "identity.cgroup",
            "identity.containers",
            "identity.cri",
            "identity.kubelet_socket",
            "kernel.bpf",
            "kernel.hooks",
            "kernel.losses",
            "kernel.pins",
            "kernel.support",
        )
    ),
    "service": May(
        ("model", "config", "ledger", "kernel", "devices", "identity", "api", "exporters", "history"),
        ("sdnotify",),
    ),
}
# kubenpud and kubenpu-probe start no other program, and the command line needs none.
NEVER = ("subprocess", "multiprocessing", "pty")
PROCESS_CALLS = ("system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp")


def imported(module: ast.Module, path: Path) -> Iterator[str]:
    """Dotted names that a module imports, wherever in it; names imported from a package count as modules of it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            (argument,) = node.args
            assert isinstance(argument, ast.Constant), f"{path}: imports a name that is only known at run time"
            yield str(argument.value)


def is_within(name: str, allowed: str) -> bool:
    return (name + ".").startswith(allowed + ".")


def refused(package: str, name: str) -> bool:
    """Whether a module of `package` must not import `name`."""
    may = PACKAGES[package]
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return top in NEVER
    if not is_within(name, "kubenpu"):
        return not any(is_within(name, each) for each in may.third_party)
    if name == "kubenpu.__version__":
        return package == "model"
    return not any(is_within(name, f"kubenpu.{each}") for each in (package, *may.own))


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_only_what_it_may(package: str) -> None:
    found = [
        f"{shown(path)} imports {name}"
        for path in files(".py", below=f"kubenpu/{package}")
        for name in imported(parsed(path), path)
        if refused(package, name)
    ]
    assert found == []


def test_every_package_is_in_the_table() -> None:
    directories = {path.name for path in (ROOT / "kubenpu").iterdir() if (path / "__init__.py").exists()}
    assert directories == set(PACKAGES)


def test_rule_finds_what_it_is_for() -> None:
    assert refused("devices", "kubenpu.kernel.store")
    assert refused("exporters", "kubenpu.service.node")
    assert refused("cli", "kubenpu.kernel.store.CounterStore")
    assert refused("cli", "kubenpu.service.node")
    assert refused("kernel", "grpc")
    assert refused("service", "subprocess")
    assert not refused("cli", "kubenpu.identity.cgroup.parse_path")
    assert not refused("service", "kubenpu.identity.cri.Runtimes")


def test_architecture_shows_this_table() -> None:
    rows = table_below((ROOT / "ARCHITECTURE.md").read_text(), "### Who imports whom")
    documented = {row[0]: (row[1], row[2]) for row in rows}
    assert documented == {
        name: (", ".join(may.own) or "-", ", ".join(may.third_party) or "-") for name, may in PACKAGES.items()
    }


def test_product_starts_no_process() -> None:
    calls = [
        f"{shown(path)}:{node.lineno}"
        for path, node in python_nodes("kubenpu")
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in PROCESS_CALLS
    ]
    assert calls == []
