// SPDX-License-Identifier: GPL-2.0-or-later
//
// log_keeper: keeps the files bounded to which a supervised QEMU appends: the guest's console, and what QEMU
// itself says. Both are fed by the guest, for as long as it likes, and by default they are in the memory of
// the host (the user's runtime directory). QEMU keeps them open, so they can't be renamed: what a file has is
// copied to FILE.1, in place of what was there, and the file is emptied.
//
// The bound is soft by what QEMU writes in one period, and by nothing else: FILE has at most `most_bytes`
// and that, FILE.1 at most `most_bytes`. What QEMU appends between the copy and the emptying (microseconds)
// is in neither.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kagemusha::control {

// One look at one file. Empty: it is within its bound now (or is no regular file: it keeps nothing). Else a
// sentence; the file was emptied all the same where that was possible.
std::string bound_log(const std::string& path, std::uint64_t most_bytes);

// Has a thread of its own, because storage may hang. Its destructor waits for one look.
class log_keeper {
public:
    // `report`: on its thread, a problem, once until it changes.
    log_keeper(std::vector<std::string> paths, std::uint64_t most_bytes,
               std::function<void(const std::string&)> report);
    ~log_keeper();
    log_keeper(const log_keeper&) = delete;
    log_keeper& operator=(const log_keeper&) = delete;

private:
    void run();

    const std::vector<std::string> paths_;
    const std::uint64_t most_bytes_;
    const std::function<void(const std::string&)> report_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool end_ = false; // under mutex_
    std::thread thread_;
};

} // namespace kagemusha::control
