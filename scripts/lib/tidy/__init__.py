# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of scripts/tidy: `sources` and `documents` read, `programs` and `clang` call others; `tree` is what."""
