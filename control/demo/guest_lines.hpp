// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the guest of the demo writes on its console, as events: the program's output (how far it is; what
// hashcat has found, the loss of a training), and the lines of the job around it. Pure: bytes in, events out, at any chopping of
// the bytes. The guest is a stranger: lines are cut, numbers checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct guest_event {
    enum class kind {
        ready,    // the job wants to be told what to do
        begun,    // run `run` began
        progress, // of the program: fraction, speed, text
        found,    // the program has found this: text is HASH:WORD
        result,   // the same, or STEP:BITS of a loss, of what it left at the end of run `run`
        ended,    // run `run` ended with `status`; its results follow
        results_end
    };
    kind what = kind::ready;
    unsigned run = 0;
    int status = 0;
    double fraction = 0, per_second = 0; // candidates, steps
    std::string text;
    double loss = 0; // of a training

    bool operator==(const guest_event&) const = default;
};

class guest_lines {
public:
    std::vector<guest_event> feed(std::string_view bytes);

private:
    void take(std::vector<guest_event>& out);
    void take_ours(std::string_view line, std::vector<guest_event>& out) const;
    std::string line_;
    bool too_long_ = false; // until its end
    std::string speed_, recovered_;
    double per_second_ = 0;
};

} // namespace kagemusha::control
