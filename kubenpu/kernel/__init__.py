# SPDX-License-Identifier: Apache-2.0
"""What happened: loading the counting programs (kubenpu-probe) and reading the pinned maps (kubenpud)."""
