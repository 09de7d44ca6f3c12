// SPDX-License-Identifier: GPL-2.0-or-later
/* What trace-events declares: QEMU's build wants a file of this name. */
#include "trace/trace-hw_vgpu.h"
