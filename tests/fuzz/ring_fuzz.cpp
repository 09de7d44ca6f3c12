// SPDX-License-Identifier: GPL-2.0-or-later
// A ring as a hostile worker may have left it, and what the device makes of it: arbitrary indices and bytes
// are read by ring_reader and decoded, and the worker's answers and records go into a file that has requests
// and events in flight, as they do in QEMU. (worker_fuzz has rings, records and link requests by themselves.)
#include <algorithm>
#include <cstdlib>
#include <new>

#include "codec/encode.hpp"
#include "core/session_fsm.hpp"
#include "fuzz_input.hpp"
#include "worker/ring.hpp"
#include "worker/wire.hpp"

using namespace kagemusha;

namespace {

constexpr std::size_t ring_bytes = 8192;
constexpr std::uint64_t context = 1, queue = 2, first_event = 10, events = 4;

void require(bool condition) {
    if (!condition)
        std::abort();
}

volatile unsigned sink = 0;

template <class T>
void touch(std::span<const T> items) {
    unsigned sum = 0;
    for (const std::byte b : std::as_bytes(items))
        sum += static_cast<unsigned>(b);
    sink = sink + sum;
}

// A file in the middle of its work.
struct file {
    core::device_usage usage{1000, 1u << 20, 0, 0, 0};
    core::session_fsm fsm{1, {16, 64, 100, 1u << 20}, usage, 1};
    std::size_t unanswered = 0;
    std::size_t answered = 0;

    file() {
        submit([](auto& b) { b.create_context(context); });
        submit([](auto& b) { b.create_queue(queue, context); });
        for (std::uint64_t e = first_event; e < first_event + events; ++e)
            submit([e](auto& b) { b.marker({queue, e, {}}); });
    }
    ~file() {
        fsm.end_all(VGPU_STATUS_LOST, [this](std::uint64_t, const vgpu_response&) { ++answered; });
        require(answered == unanswered); // each exactly once, whatever the worker said
        require(usage.requests_in_flight == 0);
    }
    template <class F>
    void submit(F&& build) {
        codec::stream_builder b;
        build(b);
        require(fsm.on_submit(b.request(1, unanswered++), {}).what == core::submit_decision::action::forward);
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    static worker::ring_control* control = new worker::ring_control();
    static std::vector<std::uint64_t> memory(ring_bytes / 8);
    const auto at_once = in.value<std::uint16_t>(); // most honest worlds: not more than the ring has
    const auto lie = in.value<std::uint8_t>();
    control->written = lie == 0xff ? in.value<std::uint64_t>() : at_once & ~std::uint64_t{7};
    control->read = 0;
    std::fill(memory.begin(), memory.end(), 0);
    if (!in.empty())
        std::memcpy(memory.data(), in.rest().data(), std::min(ring_bytes, in.rest().size()));

    file f;
    worker::ring_reader reader({control, std::as_writable_bytes(std::span(memory))}, 4096);
    std::size_t total = 0;
    bool believed = true;
    for (;;) {
        worker::record_type type{};
        std::span<const std::byte> record;
        if (reader.read(type, record) != worker::ring_status::ok)
            break;
        total += worker::ring_frame_bytes + record.size();
        require(total <= ring_bytes);
        touch(record);
        switch (type) {
        case worker::record_type::request:
            if (const auto request = worker::decode_request(record)) {
                touch(request->stream);
                touch(request->payloads);
                touch(request->segments);
                for (const kagemusha_payload& p : request->payloads)
                    touch(request->segments.subspan(p.first_segment, p.segment_count));
            }
            break;
        case worker::record_type::done:
            if (const auto done = worker::decode_done(record); done && believed) {
                const core::done_decision d = f.fsm.on_done(done->token, done->response);
                believed = !d.violation;
                f.answered += !d.violation;
            }
            break;
        case worker::record_type::written:
            if (const auto written = worker::decode_written(record); written && believed) {
                const core::written_decision d = f.fsm.on_written(written->token, written->payload);
                believed = d.broken_rule == nullptr;
                touch(d.written);
            }
            break;
        case worker::record_type::guest:
            if (worker::valid_guest_record(record) && believed)
                believed = f.fsm.on_record(record).broken_rule == nullptr;
            break;
        case worker::record_type::gpu_lost:
            (void)worker::decode_gpu_lost(record);
            break;
        case worker::record_type::opened:
        case worker::record_type::ready:
        case worker::record_type::refused:
            if (const auto sentence = worker::decode_sentence(record))
                require(worker::escaped(*sentence, 300).size() <= 300);
            break;
        }
    }
    std::size_t completions = 0;
    while (f.fsm.has_record()) {
        touch(std::span<const std::byte>(f.fsm.front_record()));
        completions +=
            reinterpret_cast<const vgpu_record*>(f.fsm.front_record().data())->type == VGPU_RECORD_COMPLETION;
        f.fsm.on_record_taken();
    }
    require(completions <= events);
    return 0;
}
