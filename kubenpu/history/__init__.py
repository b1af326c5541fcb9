# SPDX-License-Identifier: Apache-2.0
"""What was used when: usage by interval, device, workload and measure in one SQLite file, and the reports from it."""
