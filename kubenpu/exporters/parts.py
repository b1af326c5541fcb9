# SPDX-License-Identifier: Apache-2.0
"""Imports modules of a library without running the package around them, which would import all of the library."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def beside_package(name: str) -> Iterator[None]:
    """In the block, modules of this package are loaded beside an empty one. Whoever imports it later gets the real one.

    Does nothing when the package was imported already.
    """
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is None:
        yield
        return
    empty = sys.modules[name] = types.ModuleType(name)
    empty.__path__ = list(spec.submodule_search_locations or ())
    try:
        yield
    finally:
        del sys.modules[name]
