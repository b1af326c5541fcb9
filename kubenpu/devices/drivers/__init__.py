# SPDX-License-Identifier: Apache-2.0
"""The driver tables that ship with KubeNPU: data only, one TOML file per kernel driver; core.toml is the DRM core."""
