// SPDX-License-Identifier: GPL-2.0-or-later
// guest_session: a guest for tests. Drives one worker through process_port with real OpenCL C: builds a
// program, runs its kernel `k(global long* out, long argument)` with one work item, reads what it wrote.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "codec/encode.hpp"
#include "worker/port_test_helpers.hpp"
#include "worker/process_port.hpp"

namespace kagemusha::worker {

// Selects a device of this host that runs kernels as native code of the CPU (PoCL); "" if there is none.
std::string cpu_device();

class guest_session {
public:
    static constexpr std::size_t result_words = 64;
    using results = std::array<std::int64_t, result_words>;

    // `gpu` as in kagemusha_device_config.
    // `share`: of a GPU that others use, as in worker_options. `out_bytes`: of the kernel's first argument.
    explicit guest_session(std::string gpu = cpu_device(), sandbox_mode sandbox = sandbox_mode::required,
                           std::string share = {},
                           std::uint64_t out_bytes = result_words * sizeof(std::int64_t));
    ~guest_session();
    guest_session(const guest_session&) = delete;
    guest_session& operator=(const guest_session&) = delete;

    // Whether the worker started and made context, queue and buffer.
    bool opened() const { return opened_; }
    // OpenCL's result of building; the kernel is created if it is 0.
    std::int32_t build(std::string_view source, std::string_view options = {});
    std::string build_log();

    struct outcome {
        bool completed = false;    // the launch's completion record came
        std::int32_t status = 0;   // and said this
        results out{};             // if status is 0
        bool lost = false;         // the worker is gone
        vgpu_lost_reason reason{}; // why
        std::uint32_t detail = 0;
    };
    outcome run(std::int64_t argument = 0);
    // Enqueues without waiting for the completion.
    void launch(std::int64_t argument = 0);
    // The same with an event, of so many work items in groups of 64; `ended` (0: none) is one that is not
    // needed any more. Gives the event, whose completion comes as a record.
    std::uint64_t launch_with_event(std::int64_t argument, std::uint64_t items, std::uint64_t ended);

    port& worker() { return *port_; }
    recording_sink& sink() { return sink_; }
    const std::vector<std::string>& log() const { return log_; }
    std::string whole_log() const;
    std::byte* guest_memory() { return memory_; }
    static constexpr std::size_t guest_memory_bytes = 1 << 20;

private:
    // Sends what `builder_` holds and waits for its answer; false if the worker is gone.
    bool call();

    unique_fd region_;
    std::byte* memory_ = nullptr;
    std::vector<std::string> log_;
    recording_sink sink_;
    std::unique_ptr<port> port_;
    codec::stream_builder builder_;
    std::uint64_t token_ = 0, next_id_ = 100, kernel_ = 0, program_ = 0;
    vgpu_response answer_{};
    bool opened_ = false;
};

} // namespace kagemusha::worker
