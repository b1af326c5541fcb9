# SPDX-License-Identifier: Apache-2.0
"""Totals per (workload, device, kind), the conservation check and the retirement of dead workloads."""
