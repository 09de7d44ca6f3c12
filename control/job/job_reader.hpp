// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a reader of a job makes of what its keeper in the guest sends: bytes for two outputs, when these are to be
// confirmed, the status, and what can't be true. Pure.
#pragma once

#include "control/job/job_frames.hpp"

#include <functional>

namespace kagemusha::control::job {

class job_reader {
public:
    // Where the bytes go; false: they could not be written.
    using sink = std::function<bool(std::string_view)>;
    job_reader(sink out, sink err) : out_(std::move(out)), err_(std::move(err)) {}

    // False: what was sent is no keeper's, or could not be written: hang up.
    bool feed(std::string_view bytes);

    const positions& at() const { return at_; } // everything before it was written
    bool greeted() const { return greeted_; }
    std::uint64_t heard() const { return heard_; } // frames: whether it is alive
    const std::optional<int>& status() const { return status_; }
    bool failed_to_write() const { return failed_to_write_; }

private:
    bool take(char letter, std::string_view payload);
    bool write(const sink& to, std::uint64_t& at, std::string_view bytes);

    const sink out_, err_;
    lan::exec_reader frames_;
    positions at_;
    std::uint64_t heard_ = 0;
    bool greeted_ = false, failed_to_write_ = false;
    std::optional<int> status_;
};

} // namespace kagemusha::control::job
