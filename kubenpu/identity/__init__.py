# SPDX-License-Identifier: Apache-2.0
"""Whose work it is: from cgroup ids and paths to pods, containers and units, confirmed by container runtimes."""
