// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/capture/built_programs.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "codec/encode.hpp"

namespace kagemusha::mirror {

namespace {

// The agents of the same files count theirs from 1.
constexpr std::uint64_t token_bit = std::uint64_t{1} << 61;

} // namespace

void built_programs::stop() {
    wanted_ = false;
    for (auto& [of, t] : takes_) {
        t.wanted = false; // the worker may still write into its block
        t.outcome.reset();
    }
}

// What did not fit is not taken: the next build asks for it too.
bool built_programs::take(std::uint32_t file, std::uint32_t flags, taking t) {
    const auto of_file =
        std::count_if(takes_.begin(), takes_.end(), [&](const auto& one) { return one.first.first == file; });
    if (takes_.size() >= max_built_takes || of_file >= max_built_takes_per_file ||
        !memory_->allocate(max_built_pack_bytes, t.block)) {
        return false;
    }
    std::memset(t.block.bytes.data(), 0, sizeof(vgpu_built)); // a worker that writes nothing gives nothing
    const kagemusha_segment where{t.block.segment.offset, max_built_pack_bytes, t.block.segment.region, 0};
    codec::stream_builder stream;
    stream.take_built(flags, stream.payload(true, {where}));
    const std::uint64_t token = token_bit | ++last_token_;
    if (!device_.inject(file, {token, stream.stream(), stream.payloads(), stream.segments()}))
        return false;
    takes_.emplace(name{file, token}, std::move(t));
    return true;
}

void built_programs::take_everything(std::uint32_t file) {
    if (wanted_)
        take(file, VGPU_BUILT_ALL, {});
}

void built_programs::on_build(std::uint32_t file, std::uint64_t token) {
    if (wanted_) {
        taking t;
        t.build = token;
        take(file, 0, std::move(t));
    }
}

bool built_programs::hold_outcome(std::uint32_t file, std::uint64_t token, log_sequence entry,
                                  std::int32_t result) {
    for (auto& [of, t] : takes_) {
        if (of.first == file && t.build == token && t.wanted && !t.outcome) {
            t.outcome = {entry, result};
            return true;
        }
    }
    return false;
}

void built_programs::end_file(std::uint32_t file) {
    for (auto at = takes_.lower_bound({file, 0}); at != takes_.end() && at->first.first == file;) {
        device_.keep_until_gone(file, at->second.block.keep);
        give_outcome(at->second);
        at = takes_.erase(at);
    }
}

void built_programs::give_outcome(const taking& t) {
    if (t.outcome)
        log_.outcome(t.outcome->first, t.outcome->second);
}

// The worker may write into the block as it likes: what is sent is a copy, whose length was looked at once.
bool built_programs::give_pack(std::uint32_t file, const taking& t) {
    vgpu_built head;
    std::memcpy(&head, t.block.bytes.data(), sizeof(head));
    if (head.files == 0 || head.bytes <= sizeof(head) || head.bytes > max_built_pack_bytes)
        return false;
    const auto bytes = t.block.bytes.first(head.bytes);
    log_.built(file, std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
    return head.more != 0;
}

bool built_programs::on_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) {
    if ((token & token_bit) == 0)
        return false;
    auto ended = takes_.extract({file, token});
    if (ended.empty())
        return true; // of a file that has ended
    taking& t = ended.mapped();
    if (!t.wanted)
        return true;
    const bool more = response.status == VGPU_STATUS_OK && give_pack(file, t);
    taking next;
    next.build = t.build;
    next.outcome = t.outcome;
    if (!more || !take(file, 0, std::move(next)))
        give_outcome(t);
    return true;
}

} // namespace kagemusha::mirror
