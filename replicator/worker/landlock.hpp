// SPDX-License-Identifier: GPL-2.0-or-later
// landlock: the files that a process and its children may still use, by the kernel's Landlock. There is no
// library in Debian 12 for it, and its interface is three system calls.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

enum class file_access {
    read,         // read files and list directories
    execute,      // read and start programs
    write,        // read, create, write and remove regular files, directories and symbolic links
    device,       // read, write and control a device node
    rewrite,      // read and write files that are there, create nothing
    remove_entry, // remove directories in it, nothing else
};

class landlock_rules {
public:
    // Version of the running kernel's interface; 0: no Landlock.
    static int version();

    // Begins a set of rules that forbid everything which allow() does not allow: every access to files, TCP,
    // abstract Unix sockets and signals to other processes, as far as the kernel knows of them. "" or why
    // not.
    std::string create();
    // A path and all below it. What does not exist is passed over.
    void allow(const std::string& path, file_access access);
    // For this thread and what it starts from now on, for good. "" or why not.
    std::string enforce();

private:
    int version_ = 0;
    unique_fd rules_;
};

} // namespace kagemusha::worker
