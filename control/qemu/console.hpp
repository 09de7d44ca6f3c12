// SPDX-License-Identifier: GPL-2.0-or-later
//
// The guest's serial console as the host reads it: text for a person, with a few lines in between that are
// meant for us (written by the guest's start-up scripts). Pure: bytes in, events out, at any chopping of the
// bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct console_event {
    enum class kind {
        text,           // bytes to show; a line may come in pieces, as soon as they are there
        probe_answered, // KAGEMUSHA-PROBE: a kernel came up
        job_started,    // KAGEMUSHA-JOB
        job_ended       // KAGEMUSHA-EXIT <status>
    };
    kind what = kind::text;
    std::string text;
    int status = 0;

    bool operator==(const console_event&) const = default;
};

class console_parser {
public:
    std::vector<console_event> feed(std::string_view bytes);

private:
    std::string held_;         // the beginning of a line that may become one of ours
    bool inside_line_ = false; // this line is text: nothing to look for until its end
};

} // namespace kagemusha::control
