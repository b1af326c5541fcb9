# SPDX-License-Identifier: Apache-2.0
"""What exists: accelerators found in sysfs, their driver tables, and the kernel's word when either changes."""
