// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a host that has the arbiter `fence` keeps of a VM: a small file of its own, on a disk that survives a
// reboot. There is no record that both hosts share, so each remembers what it must not do any more.
//
//   kagemusha fencing record 1
//   vm NAME
//   term N
//   role primary|standby
//   paired yes|no
//
// A file is replaced as a whole (a new one is written, synced and renamed), so it is never half of one.
#pragma once

#include "control/base/process.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kagemusha::control {

struct fence_record {
    enum class role {
        none,    // there is no record
        primary, // this host was the last one that this host knows to have run the VM
        standby, // the VM ran elsewhere, and this host was told that it may take it over
    };
    std::uint64_t term = 0;
    role is = role::none;
    bool paired = false; // of a primary: a standby may have taken over since
    friend bool operator==(const fence_record&, const fence_record&) = default;
};

std::string fence_record_text(const std::string& vm, const fence_record& record);
// Nothing, and a sentence in `error`: it is none, or of another VM.
std::optional<fence_record> parse_fence_record(const std::string& text, const std::string& vm,
                                               std::string& error);

// The file. One supervisor has it at a time.
class fence_file {
public:
    // Nothing and a sentence in `error`. A file that is not there is a record with role::none.
    static std::optional<fence_file> open(const std::string& path, const std::string& vm, std::string& error);
    const fence_record& record() const { return record_; }
    // Is on the disk when it returns. A sentence when that failed.
    std::string write(const fence_record& record);
    // A person's word that the other host is off: PATH.confirm has this term. It is used once.
    bool take_confirmation(std::uint64_t term) const;

private:
    fence_file(std::string path, std::string vm, unique_fd lock)
        : path_(std::move(path)), vm_(std::move(vm)), lock_(std::move(lock)) {}
    std::string path_, vm_;
    unique_fd lock_;
    fence_record record_;
};

// A path in memory would not survive a reboot. Empty, or a sentence.
std::string why_not_durable(const std::string& path);

} // namespace kagemusha::control
