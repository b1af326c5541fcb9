# SPDX-License-Identifier: Apache-2.0
"""The parts of the varlink library that are used here: dispatch, definitions, errors. Import them from nowhere else.

Running the library's package imports its client too, with tempfile and the compressors behind it. So the package is not
run; its modules are loaded beside an empty one.
"""

from __future__ import annotations

import importlib.util
import sys
import types


def _skip_package() -> None:
    spec = importlib.util.find_spec("varlink")
    if spec is None:
        raise ModuleNotFoundError("No module named 'varlink'", name="varlink")
    if "varlink" not in sys.modules:
        package = types.ModuleType("varlink")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["varlink"] = package


_skip_package()

from varlink.error import InvalidParameter, VarlinkEncoder, VarlinkError  # noqa: E402
from varlink.scanner import Interface  # noqa: E402
from varlink.server import Service  # noqa: E402

__all__ = ["Interface", "InvalidParameter", "Service", "VarlinkEncoder", "VarlinkError"]
