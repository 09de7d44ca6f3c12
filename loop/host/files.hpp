// SPDX-License-Identifier: GPL-2.0-or-later
// files: what a device loop may read: regular files below one directory. Thin.
#pragma once

#include <cstdint>
#include <map>

#include "loop/core/mailbox.hpp"

namespace kagemusha::loop {

class files {
public:
    explicit files(int root) : root_(root) {}
    ~files();
    files(const files&) = delete;
    files& operator=(const files&) = delete;

    // Their answers. What fails is LOOP_NONE with an errno.
    event open(const request& one);
    event read(const request& one);
    void forget(std::uint32_t id);

private:
    const int root_;
    std::map<std::uint32_t, int> open_; // at most max_files
    std::uint32_t next_id_ = 1;
};

} // namespace kagemusha::loop
