# SPDX-License-Identifier: Apache-2.0
"""The repository checks itself: what is agreed on about its form is a test here. Reads files, runs nothing of ours."""
