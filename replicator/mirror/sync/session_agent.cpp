// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/sync/session_agent.hpp"

namespace kagemusha::mirror {

namespace {

class real_agent final : public session_agent {
public:
    real_agent(std::uint32_t file, session_shadow& state, core::mirror_port& device, log_sink& log,
               agent_memory& memory, const agent_options& options)
        : agent_(file, state, device, log, memory, options) {}

    void start_sync() override { agent_.start_sync(); }
    bool ready_to_finish() const override { return agent_.ready_to_finish(); }
    void finish_sync() override { agent_.finish_sync(); }
    void stop() override { agent_.stop(); }
    void prepare() override { agent_.prepare(); }
    bool take_digest(bool everything) override { return agent_.take_digest(everything); }
    void on_digest_result(log_sequence entry, std::span<const std::uint64_t> different) override {
        agent_.on_digest_result(entry, different);
    }
    void before_submit() override { agent_.before_submit(); }
    void after_submit() override { agent_.after_submit(); }
    void after_read() override { agent_.after_read(); }
    bool ships() const override { return agent_.ships(); }
    void on_done(std::uint64_t token, const vgpu_response& response) override {
        agent_.on_done(token, response);
    }
    void on_record(std::span<const std::byte> record) override { agent_.on_record(record); }
    void on_lost() override { agent_.on_lost(); }
    void on_tick() override { agent_.on_tick(); }
    std::string waiting() const override { return agent_.waiting(); }
    bool waits_for_guest() const override { return agent_.waits_for_guest(); }
    bool idle() const override { return agent_.idle(); }
    const agent_counters& counters() const override { return agent_.counters(); }

private:
    sync_agent agent_;
};

} // namespace

agent_factory make_agent_factory(agent_memory& memory, const agent_options& options) {
    return [&memory, options](std::uint32_t file, session_shadow& state, core::mirror_port& device,
                              log_sink& log) -> std::unique_ptr<session_agent> {
        return std::make_unique<real_agent>(file, state, device, log, memory, options);
    };
}

} // namespace kagemusha::mirror
