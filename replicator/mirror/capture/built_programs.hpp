// SPDX-License-Identifier: GPL-2.0-or-later
// built_programs: when the primary's workers are asked for what their compilers have made, so that a standby
// need not make it again (gpu/built_files.hpp). Of all files of a mirror. Pure.
//
//   the guest's build is handed on ──▶ TAKE_BUILT right behind it, in the same worker
//   the build is answered          ──▶ its outcome is held back
//   TAKE_BUILT is answered         ──▶ the pack goes to the log, then the outcome
//
// A standby builds when it knows the outcome, so it has the pack by then. The outcome waits for nothing but
// the worker that has just given it: a few ms, or the worker's end, which ends the file. Where nothing can be
// taken (memory, too many at a time) the outcome is not held, and the standby compiles.
//
// At the beginning of a state transfer each file is asked for everything. Packs that come late find that
// some programs were compiled; no order depends on them.
//
// A worker is not trusted: of a pack only the length is looked at.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "core/mirror_tap.hpp"
#include "mirror/log/limits.hpp"
#include "mirror/log/log_sink.hpp"
#include "mirror/sync/sync_agent.hpp"

namespace kagemusha::mirror {

class built_programs {
public:
    // `memory`: where workers put packs; null: nothing is ever taken. All outlive this.
    built_programs(core::mirror_port& device, log_sink& log, agent_memory* memory)
        : device_(device), log_(log), memory_(memory) {}

    // A standby is there that has use for packs, or not; it is gone.
    void start(bool wanted) { wanted_ = wanted && memory_; }
    void stop();

    // Its state transfer begins.
    void take_everything(std::uint32_t file);
    // The guest's request with this token builds, and was handed on just now.
    void on_build(std::uint32_t file, std::uint64_t token);
    // The log's entry of that request has this outcome. True: it is told behind the pack.
    bool hold_outcome(std::uint32_t file, std::uint64_t token, log_sequence entry, std::int32_t result);
    // From inside on_close(), on_lost() and on_reset() of the tap.
    void end_file(std::uint32_t file);
    // A request that was injected has ended. False: it is not of this.
    bool on_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response);

private:
    struct taking {
        agent_memory::block block = {};
        std::uint64_t build = 0; // the guest's request; 0: none
        std::optional<std::pair<log_sequence, std::int32_t>> outcome;
        bool wanted = true;
    };
    using name = std::pair<std::uint32_t, std::uint64_t>; // file, token

    bool take(std::uint32_t file, std::uint32_t flags, taking t);
    bool give_pack(std::uint32_t file, const taking& t); // true: there is more
    void give_outcome(const taking& t);

    core::mirror_port& device_;
    log_sink& log_;
    agent_memory* const memory_;
    bool wanted_ = false;
    std::map<name, taking> takes_; // at most max_built_takes
    std::uint64_t last_token_ = 0;
};

} // namespace kagemusha::mirror
