// SPDX-License-Identifier: GPL-2.0-or-later
//
// See job_reader.hpp.
#include "control/job/job_reader.hpp"

namespace kagemusha::control::job {

bool job_reader::feed(std::string_view bytes) {
    frames_.feed(bytes);
    while (const auto frame = frames_.next())
        if (!take(frame->letter, frame->payload))
            return false;
    return !frames_.broken();
}

bool job_reader::write(const sink& to, std::uint64_t& at, std::string_view bytes) {
    if (!to(bytes)) {
        failed_to_write_ = true;
        return false;
    }
    at += bytes.size();
    return true;
}

bool job_reader::take(char letter, std::string_view payload) {
    ++heard_;
    if (status_ || greeted_ == (letter == 'B'))
        return false;
    switch (letter) {
    case 'B': {
        const auto begins = positions_in(payload);
        if (!begins)
            return false;
        at_ = *begins;
        greeted_ = true;
        return true;
    }
    case 'O':
        return write(out_, at_.out, payload);
    case 'X':
        return write(err_, at_.err, payload);
    case 'K':
        return payload.empty();
    case 'S':
        status_ = lan::exec_status(payload);
        return status_.has_value();
    default:
        return false;
    }
}

} // namespace kagemusha::control::job
