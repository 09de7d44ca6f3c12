# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of scripts/tidy: `sources` reads, `programs` and `clang` call others, scripts/tidy-docs reads documents."""
