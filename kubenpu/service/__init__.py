# SPDX-License-Identifier: Apache-2.0
"""The composition roots of kubenpu-probe and kubenpud.

Before anything else is imported the kernel is told to use small pages: some kernels give the heap and the text of
libraries huge ones, whether they are needed whole or not. On Linux 7.3 kubenpud was over its budget by that.
"""

import ctypes

_PR_SET_THP_DISABLE = 41  # prctl(2); a kernel without huge pages refuses, which is as good

ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
