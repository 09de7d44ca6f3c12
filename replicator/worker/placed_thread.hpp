// SPDX-License-Identifier: GPL-2.0-or-later
// placed_thread: a thread whose pthread_self() is a wanted value. That is the address of what the C library
// keeps of a thread, which lies at the end of its stack; so the stack is put where it comes out right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kagemusha::worker {

// Starts it; it is never joined. "" or why this process can't have it: the C library puts it elsewhere, or the
// addresses there are taken.
std::string run_thread_at(std::uint64_t wanted, std::function<void()> body);

} // namespace kagemusha::worker
