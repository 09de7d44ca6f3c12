// SPDX-License-Identifier: GPL-2.0-or-later
//
// The jobs of bench/takeover and of guests that share a GPU.
#pragma once

#include <cstddef>

// For so many seconds, or until there is a file of this name (may be null): kernels of about four
// milliseconds keep the GPU busy for half of the time, or for less where the guest needs longer for a round
// than the GPU needs for two. Every round is checked. Beside them so many MiB that are written once, and
// looked at at the end.
void pulse(double seconds, const char* stop_file, std::size_t mib);

// The same, without a pause: there are always some kernels of about this length in the queue.
void keep_busy(double seconds, const char* stop_file, double kernel_ms);

// For as long: builds one program with two small kernels after the other, launches them and checks what they give.
// So many programs stay.
void build_programs(double seconds, const char* stop_file, std::size_t live);
