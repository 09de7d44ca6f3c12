// SPDX-License-Identifier: GPL-2.0-or-later
//
// crash_fsm: the course of a demo in which a VM's host dies. Pure: what the guest, the supervisors and the
// clock say comes in, what is to be done goes out.
//
//   booting ─ guest is ready ─▶ reference ─ has its results ─▶ attaching ─ protected, ready ─▶ computing
//                                 ▲      │ was over too soon                                       │ in the
//                                 middle └──────┘ for this GPU: more words                                ▼
//   over ◀─ both supervisors ended ─ ending ◀─ results are there ─ survived ◀─ the standby runs ─ killed
//
// Whatever else happens ends it with a sentence.
#pragma once

#include "control/demo/guest_lines.hpp"
#include "control/demo/program.hpp"
#include "control/demo/story.hpp"
#include "control/demo/task.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace kagemusha::control {

namespace demo_action {
struct start_standby {};
struct report_guest { // a line, on its console
    demo_host at = demo_host::primary;
    std::string line;
};
enum class reading {
    before_reference,
    after_reference,
    before_crash_run,
    before_kill,
    after_takeover,
    at_end
};
struct read_gpu { // the counters of a GPU device
    demo_host at = demo_host::primary;
    reading what = reading::before_reference;
};
struct kill_primary {};
struct show { // what the program does
    demo_host at = demo_host::primary;
    std::string text;
};
struct say { // what we do
    std::string text;
};
struct end {         // the last one
    std::string why; // "": as it should
};
using any = std::variant<start_standby, report_guest, read_gpu, kill_primary, show, say, end>;
} // namespace demo_action

struct crash_config {
    double least_seconds = 8; // for which this GPU is to be busy with all words of the set
    double margin = 1.25;     // for a set that is chosen by a speed that a shorter run measured
    double kill_at = 0.4;
    std::uint64_t checkpoints = 3; // on the standby before the run begins
    double show_every = 0.05;
};

// As a supervisor's status has it.
struct supervisor_reading {
    std::string state, degraded;
    std::uint64_t checkpoints = 0, pause_us = 0;
    std::uint64_t committed_ns = 0, decided_ns = 0, running_ns = 0,
                  first_command_ns = 0; // of its last takeover
};

class crash_fsm {
public:
    explicit crash_fsm(crash_config config, demo_program program = demo_program::hashcat);

    void on_guest(demo_host from, const guest_event& event, std::uint64_t now_ns);
    void on_status(demo_host of, const supervisor_reading& status, std::uint64_t now_ns);
    // A line of a supervisor's log.
    void on_log(demo_host of, const std::string& event, const std::string& text, std::uint64_t ns);
    void on_exit(demo_host of, int status);
    void on_console(demo_host of); // what its guest says is heard from here on
    void on_killed(std::uint64_t ns) { story_.killed_ns = ns; }

    bool next(demo_action::any& action); // false: nothing to do now

    const word_set& words() const { return word_sets()[work_]; } // of hashcat
    demo_story& story() { return story_; }

private:
    enum class state { booting, reference, attaching, computing, killed, survived, ending, over };
    void enter(state to) { state_ = to; }
    void act(demo_action::any action) { actions_.push_back(std::move(action)); }
    void finish(std::string why); // "": as it should
    void run();
    void after_reference();
    void on_progress(demo_host from, const guest_event& event, std::uint64_t now_ns);
    void begin_if_ready();
    void finish_if_done();

    const crash_config config_;
    state state_ = state::booting;
    const demo_program program_;
    const std::vector<demo_work> works_;
    std::size_t work_ = 0; // which of them the present run does
    unsigned run_ = 0;
    std::set<std::string> results_; // of the present run
    double fastest_ = 0;            // candidates per second
    bool ready_ = false, protected_ = false, standby_heard_ = false, has_results_ = false;
    double shown_ = -1;
    demo_host shown_of_ = demo_host::primary;
    std::map<demo_host, int> ended_;
    std::deque<demo_action::any> actions_; // taken after every event
    demo_story story_;
};

} // namespace kagemusha::control
