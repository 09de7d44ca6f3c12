// SPDX-License-Identifier: GPL-2.0-or-later
// ideal_agent: in place of sync_agent where its work is not what is tested.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mirror/shadow/session_shadow.hpp"
#include "mirror/sync/session_agent.hpp"
#include "tests/support/instant_device.hpp"

namespace kagemusha::mirror::testing {

// An agent that can read the GPU's memory without asking anybody. It does all the work in the last round.
class ideal_agent final : public session_agent {
public:
    ideal_agent(instant_device& primary, std::uint32_t file, session_shadow& state, core::mirror_port& device,
                log_sink& log)
        : primary_(primary), file_(file), state_(state), device_(device), log_(log) {}

    bool allowed = true; // to finish
    bool busy = false;   // as idle() says
    bool can_digest = true;
    std::vector<std::string> calls; // of what concerns digests and its own requests
    void fail(const std::string& why) { log_.failed(why); }
    log_sink& log() { return log_; }

    void start_sync() override {
        syncing_ = true;
        calls.push_back("start_sync");
        if (patience > 0 && nothing_waits())
            ship_dirty(); // a first round; what is written from here on must be dirty again
    }
    bool ready_to_finish() const override { return syncing_ && allowed && patience <= 0 && nothing_waits(); }
    void finish_sync() override {
        syncing_ = false;
        require(!state_.memory_is_pending(), "memory whose creation is not known to have succeeded");
        ship_dirty();
        calls.push_back("finish_sync");
    }
    void stop() override {
        syncing_ = false;
        calls.push_back("stop");
    }
    void prepare() override { calls.push_back("prepare"); }
    bool take_digest(bool everything) override {
        calls.push_back(everything ? "digest of everything" : "digest");
        counters_.digests += can_digest;
        return can_digest;
    }
    void on_digest_result(log_sequence entry, std::span<const std::uint64_t> different) override {
        calls.push_back("result of " + std::to_string(entry) + ": " + std::to_string(different.size()));
    }
    void before_submit() override {
        calls.push_back("before");
        --patience;
    }
    void after_submit() override { calls.push_back("after"); }
    void on_done(std::uint64_t token, const vgpu_response&) override {
        calls.push_back("done " + std::to_string(token));
    }
    void on_record(std::span<const std::byte>) override { calls.push_back("record"); }
    void on_lost() override { ++*lost; }
    void on_tick() override { calls.push_back("tick"); }
    std::string waiting() const override { return allowed ? "" : "the test says no"; }
    bool waits_for_guest() const override { return syncing_ && !nothing_waits(); }
    bool idle() const override { return !busy; }
    std::shared_ptr<int> lost = std::make_shared<int>(0);
    const agent_counters& counters() const override { return counters_; }

    int patience = 0; // requests of the guest between the first round and the last

private:
    bool nothing_waits() const { return device_.objects(file_)->unset_user_events() == 0; }
    void ship_dirty() {
        state_.for_each_memory([this](memory_info& m) {
            if (m.dirty_for_sync && !m.unconfirmed) {
                ship(m);
                m.dirty_for_sync = false;
            }
        });
    }
    void ship(const memory_info& m) {
        constexpr guest_id queue = agent_id_bit | 1;
        auto content =
            std::make_shared<std::vector<std::byte>>(primary_.content(file_, m.context, m.id, m.bytes));
        append(stream_builder{}.create_queue(queue, m.context), nullptr);
        stream_builder write;
        const vgpu_payload_ref from = write.payload(false, 0, 0, m.bytes);
        write.write_buffer({queue, 0, {}}, m.id, 0, from);
        append(write, content);
        append(stream_builder{}.destroy(VGPU_OBJECT_QUEUE, queue), nullptr);
    }
    void append(const stream_builder& b, std::shared_ptr<std::vector<std::byte>> content) {
        log_entry e;
        e.meta.flags = entry_agent;
        e.meta.op_count = 1;
        e.stream.resize(b.stream().size() / 8);
        std::memcpy(e.stream.data(), b.stream().data(), b.stream().size());
        e.meta.stream_bytes = b.stream().size();
        if (content) {
            e.payloads.push_back({content->size(), false});
            e.meta.content_bytes = rounded_up(content->size());
            e.content.push_back({{std::span<const std::byte>(*content)}, content});
        }
        log_.append(std::move(e));
    }

    instant_device& primary_;
    const std::uint32_t file_;
    session_shadow& state_;
    core::mirror_port& device_;
    log_sink& log_;
    bool syncing_ = false;
    agent_counters counters_;
};

} // namespace kagemusha::mirror::testing
