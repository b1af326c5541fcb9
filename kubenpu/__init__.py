# SPDX-License-Identifier: Apache-2.0
"""KubeNPU: who used each accelerator of this node, how much, how long and how well."""

__version__ = "0.1.0"
