# SPDX-License-Identifier: Apache-2.0
"""The driver tables against the kernel headers that Debian ships today: what a new kernel brings is printed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubenpu.devices.tables import load_tables
from tests.integration.kernel_headers import SUITES, TABLES, complaints, read_numbers, read_unknown_headers


@pytest.mark.parametrize("suite", SUITES)
def test_every_call_of_every_header_is_named_with_its_number(suite: str) -> None:
    version, headers = read_numbers(suite)
    loaded = load_tables(Path("/nonexistent"))
    assert complaints((loaded.core, *loaded.tables), headers) == [], f"kernel {version}"
    assert {"drm/drm.h", "drm/i915_drm.h", "linux/kfd_ioctl.h"} <= headers.keys() <= TABLES.keys()
    assert all(headers.values())


@pytest.mark.parametrize("suite", SUITES)
def test_no_header_of_a_driver_is_without_table(suite: str) -> None:
    assert read_unknown_headers(suite) == set()
