# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `make bench`. Each compares with another way of doing the same in the same run and prints ratios."""
