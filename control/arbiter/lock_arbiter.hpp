// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter for two supervisors on one machine: a record in a file that both have mapped. The record is one
// word, and is changed by compare-and-swap, not under a file lock: a supervisor that is frozen while it holds
// a lock would stop the other one, and being frozen is what an arbiter is for. The clock is CLOCK_BOOTTIME,
// which both share; a boot has a file of its own (PATH.BOOT-ID), because the clock begins anew with it and
// everybody of before is dead.
//
// A cleaner of temporary files may unlink the file. Whoever notices that (each request looks) leaves the old
// page for good, so that nobody who still has it is granted anything there, and goes on in a new file. There
// the record is gone (arbiter_answer::verdict::gone), and who may have it made again knows.
#pragma once

#include "control/arbiter/arbiter.hpp"
#include "control/base/process.hpp"

#include <atomic>
#include <sys/types.h>

namespace kagemusha::control {

class lock_arbiter final : public arbiter {
public:
    // Null and a sentence in `error`.
    static std::unique_ptr<lock_arbiter> open(const std::string& path, std::uint32_t lease_ms,
                                              const arbiter_identity& identity, arbiter_answers answer,
                                              std::string& error);
    ~lock_arbiter() override;
    void ask(const ha::arbiter_request& request) override;

    // The answer of this moment; what ask() gives to `answer`.
    ha::arbiter_answer decide(const ha::arbiter_request& request, std::uint64_t now_ms);

private:
    // As it lies in the file.
    struct page {
        std::uint64_t magic;
        std::atomic<std::uint64_t> word;
        char owner[64]; // of the last one who got it, for people; may be torn
    };
    struct mapping {
        page* at = nullptr;
        dev_t device = 0;
        ino_t inode = 0;
    };
    // Of the file, which is made unless it is there. Nothing and a sentence in `error`.
    static mapping map(const std::string& file, std::string& error);
    lock_arbiter(std::string file, const mapping& mapped, std::uint32_t lease_ms, arbiter_identity identity,
                 arbiter_answers answer)
        : file_(std::move(file))
        , mapped_(mapped)
        , page_(mapped.at)
        , lease_ms_(lease_ms)
        , identity_(std::move(identity))
        , answer_(std::move(answer)) {}
    bool is_unlinked() const;
    std::string move_on(); // to the file that has the name now; a sentence when that failed

    const std::string file_;
    mapping mapped_;
    page* page_;
    std::uint32_t lease_ms_;
    arbiter_identity identity_;
    arbiter_answers answer_;
};

} // namespace kagemusha::control
