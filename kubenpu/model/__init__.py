# SPDX-License-Identifier: Apache-2.0
"""The values that cross packages: frozen dataclasses and enums. Imports nothing of KubeNPU, does no I/O."""
