// SPDX-License-Identifier: GPL-2.0-or-later
// api: the driver API's declarations with the visibility of what this library exports, and what each call
// does first.
#pragma once

#pragma GCC visibility push(default)
#include "proto/cuda/cuda.h"
#pragma GCC visibility pop
