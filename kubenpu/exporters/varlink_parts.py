# SPDX-License-Identifier: Apache-2.0
"""The parts of the varlink library that are used here: dispatch, definitions, errors. Import them from nowhere else.

Running the library's package imports its client too, with tempfile and the compressors behind it.
"""

from __future__ import annotations

from kubenpu.exporters.parts import beside_package

with beside_package("varlink"):
    from varlink.error import InvalidParameter, VarlinkEncoder, VarlinkError
    from varlink.scanner import Interface
    from varlink.server import Service

__all__ = ["Interface", "InvalidParameter", "Service", "VarlinkEncoder", "VarlinkError"]
