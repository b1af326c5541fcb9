# SPDX-License-Identifier: Apache-2.0
"""The composition roots of kubenpu-probe, kubenpud and kubenpu-clients.

Before anything else is imported, memory is told to stay small.
"""

from kubenpu.service.heap import keep_small

keep_small()
