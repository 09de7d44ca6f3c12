// SPDX-License-Identifier: GPL-2.0-or-later
// cut_link: a cable between two Unix sockets that a test can pull and plug in again.
#pragma once

#include <sys/un.h>

#include <atomic>
#include <string>
#include <thread>

namespace kagemusha::test {

// Of a path that is short enough.
sockaddr_un unix_name(const std::string& path);

class cut_link {
public:
    // Whoever connects to `from` talks to whoever listens at `to`.
    cut_link(const std::string& from, const std::string& to);
    ~cut_link();
    cut_link(const cut_link&) = delete;
    cut_link& operator=(const cut_link&) = delete;

    void cut();     // ends every connection; new ones end at once
    void restore(); // new ones are carried again

private:
    void run();

    const std::string from_, to_;
    int listener_ = -1;
    std::atomic<bool> cut_ = false, end_ = false;
    std::thread thread_;
};

} // namespace kagemusha::test
