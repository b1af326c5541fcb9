# SPDX-License-Identifier: Apache-2.0
"""Tests that load the real BPF object into the kernel of this machine. They need root."""
