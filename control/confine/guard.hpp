// SPDX-License-Identifier: GPL-2.0-or-later
//
// The little program between the tool and a guarded child (process.hpp, spawn_request): it asks the kernel to
// end it with the tool, confines itself, starts a launcher of workers where one is wanted, and becomes the
// child. Calls that a process can make only for itself, which is why posix_spawn() does not do them.
#pragma once

namespace kagemusha::control {

// Entry point, called by main() with what follows guard_word: the guarding process's number, whether a
// launcher is wanted, the confinement, then the command.
[[noreturn]] void guard_main(char** arguments);

} // namespace kagemusha::control
