// SPDX-License-Identifier: GPL-2.0-or-later
//
// The little program between the tool and a guarded child (process.hpp, spawn_request): it asks the kernel to
// end it with the tool, confines itself, starts a launcher of workers where one is wanted, and becomes the
// child. Calls that a process can make only for itself, which is why posix_spawn() does not do them.
#pragma once

namespace kagemusha::control {

// For the beginning of main(), in every program that starts guarded children: does not return if this process is
// to be that little program. Behind guard_word come the guarding process's number, whether a launcher is wanted,
// the confinement, then the command.
void guard_if_asked(int argc, char** argv);

} // namespace kagemusha::control
