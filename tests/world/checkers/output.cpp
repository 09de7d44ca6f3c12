// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/checkers/output.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

std::uint32_t output_checker::new_root() {
    const auto id = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back({0, 1, id});
    return id;
}

std::uint32_t output_checker::new_node(std::uint32_t parent) {
    const auto id = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back({parent, nodes_[parent].depth + 1, nodes_[parent].root});
    return id;
}

bool output_checker::is_before(std::uint32_t earlier, std::uint32_t later) const {
    while (nodes_[later].depth > nodes_[earlier].depth)
        later = nodes_[later].parent;
    return earlier == later;
}

void output_checker::spoke(std::uint8_t host, std::uint32_t run, const packet& p) {
    if (run < speaker_)
        return w_.fail(fmt::format("one speaker: run {} speaks on {} after run {} did", run,
                                   w_.hosts[host]->name(), speaker_));
    if (reported_ != 0 && nodes_[reported_].root == nodes_[p.node].root && !is_before(reported_, p.node))
        return w_.fail(fmt::format("output commit: run {} on {} speaks and does not have what run {} told",
                                   run, w_.hosts[host]->name(), speaker_));
    if (nodes_[p.node].root < nodes_[reported_].root)
        return w_.fail("output commit: a history that was left goes on");
    speaker_ = run;
    reported_ = p.node;
    if (p.request != 0)
        check_reply(p);
}

void output_checker::check_reply(const packet& p) {
    const auto r = p.request;
    const auto wrong = [&](const char* what, std::uint32_t is, std::uint32_t expected) {
        w_.fail(fmt::format("exactly once: in the reply to request {} {} is {}{}, expected {}{}", r, what,
                            is & ~owned, is & owned ? "+" : "", expected & ~owned,
                            expected & owned ? "+" : ""));
    };
    const auto check = [&](const char* what, std::uint32_t is, std::uint32_t expected) {
        if (is != expected)
            wrong(what, is, expected);
    };
    if (r < reported_request_)
        return w_.fail(fmt::format("exactly once: the VM knows {} requests, and has replied to {}", r,
                                   reported_request_));
    reported_request_ = r;
    check("the GPU's count", p.gpu_value, r);
    check("the word that the GPU read into", p.words[0], r);
    check("the word that the program changed after the read", p.words[1], r | owned);
    check("the disk's block", p.blocks[0], r);
    if (r < 2)
        return;
    check("the word of the request before", p.before[0], r - 1);
    check("the changed word of the request before", p.before[1], (r - 1) | owned);
    check("the block of the request before", p.blocks[1], r - 1);
}

} // namespace kagemusha::world
