// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/standby_text.hpp"

#include "codec/cl_numbers.hpp"
#include "mirror/protocol/message_text.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::mirror {

namespace {

struct action_text {
    std::string operator()(const act_send& a) const { return to_text(a); }
    std::string operator()(const act_close_link& a) const { return to_text(a); }
    std::string operator()(const act_run& a) const { return "run " + std::to_string(a.sequence); }
    std::string operator()(const act_skip& a) const { return "skip " + std::to_string(a.sequence); }
    std::string operator()(const act_resume& a) const { return "resume " + std::to_string(a.request.token); }
    std::string operator()(const act_live&) const { return "live"; }
    std::string operator()(const act_forget_all&) const { return "forget_all"; }
    std::string operator()(const act_store_built& a) const { return "store " + to_text(message(a.what)); }
    std::string operator()(const act_standby_state& a) const { return state_text(name_of(a.state), a.why); }
};

// What a person can do about a call that failed here alone.
std::string advice(std::int32_t error) {
    return error == codec::cl_invalid_binary
               ? ": it is a program made from a binary, which is for one kind of GPU and driver; use the "
                 "same here as on the primary, or programs that are built from their source"
           : error == VGPU_CUDA_OTHER_ADDRESS
               ? ": a variable of a CUDA module lies at another address here, where pointers to it would be "
                 "wrong; a standby that is started again may have it at the same one"
               : "";
}

std::string error_text(std::int32_t error) {
    return error <= VGPU_CUDA_ERROR_BASE ? "CUDA's error " + std::to_string(VGPU_CUDA_ERROR_BASE - error)
                                         : "OpenCL's error " + std::to_string(error);
}

} // namespace

const char* name_of(standby_state s) {
    static constexpr const char* names[] = {"listening", "greeting",   "following",
                                            "ready",     "taken_over", "ended"};
    return names[static_cast<std::size_t>(s)];
}

std::string to_text(const standby_action& a) {
    return std::visit(action_text{}, a);
}

std::string failed_here_alone(log_sequence entry, std::uint32_t file, std::int32_t result) {
    return "entry " + std::to_string(entry) + " of file " + std::to_string(file) +
           " failed on the standby with " + error_text(result) + ", and had not on the primary" +
           advice(result);
}

} // namespace kagemusha::mirror
