# SPDX-License-Identifier: Apache-2.0
"""The same cases, seen from two sides: on the host each stands for its result in a guest, in a guest it runs."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "guests(*names): the guests a case is for; without it, the ordinary ones")
    config.addinivalue_line("markers", "every_machine: in the guests of other machines, too")
    config.addinivalue_line("markers", "after_reboot: the guest boots once more before it, with its disk as it was")
    config.addinivalue_line("markers", "deadline(seconds): how long a case may take in a guest; 180 without it")
    if "KUBENPU_VM_GUEST" in os.environ:
        from tests.vm.guest import reporting

        config.pluginmanager.register(reporting)
    else:
        from tests.vm import guests

        config.pluginmanager.register(guests)
