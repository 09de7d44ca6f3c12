// SPDX-License-Identifier: GPL-2.0-or-later
// test_helpers: a guest and a worker for tests of core: the guest's side as stream_builder requests, the
// worker's side as a port whose every move the test makes.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/port.hpp"
#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "core/device.hpp"
#include "core/session_fsm.hpp"

namespace kagemusha::core::testing {

using codec::stream_builder;

// One region of 1 GiB; nothing here touches it.
inline const std::vector<std::uint64_t> regions{std::uint64_t{1} << 30};

inline vgpu_response ok_response(std::int32_t result = 0) {
    vgpu_response r{};
    r.result = result;
    return r;
}

template <class Record>
std::vector<std::byte> record_bytes(Record r, std::uint32_t type, std::size_t extra = 0) {
    r.record.type = type;
    r.record.bytes = static_cast<std::uint32_t>(sizeof(r) + extra);
    std::vector<std::byte> out(sizeof(r) + extra, std::byte{0});
    std::memcpy(out.data(), &r, sizeof(r));
    return out;
}

inline std::vector<std::byte> completion(std::uint64_t event, std::int32_t status = 0) {
    vgpu_record_completion c{};
    c.event = event;
    c.status = status;
    return record_bytes(c, VGPU_RECORD_COMPLETION);
}

inline std::vector<std::byte> queue_error(std::uint64_t queue, std::int32_t error,
                                          std::uint32_t opcode = VGPU_CMD_LAUNCH) {
    vgpu_record_queue_error e{};
    e.queue = queue;
    e.error = error;
    e.opcode = opcode;
    return record_bytes(e, VGPU_RECORD_QUEUE_ERROR);
}

inline std::vector<std::byte> text(const std::string& s) {
    vgpu_record_text t{};
    t.text_bytes = static_cast<std::uint32_t>(s.size());
    auto out = record_bytes(t, VGPU_RECORD_TEXT, (s.size() + 7) / 8 * 8);
    std::memcpy(out.data() + sizeof(t), s.data(), s.size());
    return out;
}

template <class Record>
Record as(std::span<const std::byte> bytes) {
    Record r{};
    std::memcpy(&r, bytes.data(), std::min(sizeof(r), bytes.size()));
    return r;
}

// What a worker was given, as a copy that outlives the call.
struct received_request {
    std::uint64_t token = 0;
    std::vector<std::uint64_t> words;
    std::vector<kagemusha_payload> payloads;
    std::vector<std::uint16_t> opcodes;

    explicit received_request(const worker::request_view& r)
        : token(r.token), words(r.stream.size() / 8), payloads(r.payloads.begin(), r.payloads.end()) {
        std::memcpy(words.data(), r.stream.data(), r.stream.size());
        codec::stream_decoder decoder(std::as_bytes(std::span(words)), {payloads});
        codec::op o;
        while (decoder.next(o) == codec::decode_status::op)
            opcodes.push_back(codec::header_of(o).opcode);
        valid = decoder.error().message == nullptr;
    }
    bool valid = false;
};

// ---- session_fsm alone
// --------------------------------------------------------------------------------------------------

inline constexpr file_limits generous{512, 1024, 1u << 18, std::uint64_t{1} << 40};

struct file_harness {
    explicit file_harness(const file_limits& limits = generous) : file_harness(limits, limits) {}
    file_harness(const file_limits& limits, const file_limits& of_log) : fsm(7, limits, of_log, usage, 42) {}
    ~file_harness() {
        fsm.end_all(VGPU_STATUS_CANCELED, [](std::uint64_t, const vgpu_response&) {});
    }

    device_usage usage{1u << 20, std::uint64_t{1} << 41, 0, 0, 0};
    session_fsm fsm;
    std::uint64_t next_token = 1;

    submit_decision submit(const stream_builder& b) {
        return fsm.on_submit(b.request(7, next_token++), regions);
    }

    // Submits what must be forwarded, and answers it.
    void run(const stream_builder& b, std::int32_t result = 0) {
        const submit_decision d = submit(b);
        if (d.what != submit_decision::action::forward) {
            throw std::runtime_error(d.broken_rule ? d.broken_rule
                                                   : "answered with " + std::to_string(d.response.result));
        }
        const done_decision done = fsm.on_done(d.request.token, ok_response(result));
        if (done.violation)
            throw std::runtime_error(done.broken_rule);
    }

    template <class F>
    void run(F&& build, std::int32_t result = 0)
        requires std::is_invocable_v<F, stream_builder&>
    {
        stream_builder b;
        build(b);
        run(b, result);
    }

    // Takes every record that waits for the guest.
    std::vector<std::vector<std::byte>> take_records() {
        std::vector<std::vector<std::byte>> out;
        while (fsm.has_record()) {
            const auto r = fsm.front_record();
            out.emplace_back(r.begin(), r.end());
            fsm.on_record_taken();
        }
        return out;
    }
};

// ---- the device
// ------------------------------------------------------------------------------------------------------

class scripted_port final : public worker::port {
public:
    scripted_port() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    ~scripted_port() override { close(event_); }

    // Moves of the test.
    worker::submit_result next_submit = worker::submit_result::accepted;
    std::deque<received_request> received;
    std::uint64_t progress_value = 0;
    unsigned kicks = 0;
    bool killed = false;
    bool dies = true; // when it is killed; false: until end()

    void say(std::function<void(worker::port_sink&)> f) {
        pending_.push_back(std::move(f));
        const std::uint64_t one = 1;
        if (write(event_, &one, sizeof(one)) < 0)
            throw std::runtime_error("eventfd");
    }
    void done(std::uint64_t token, std::int32_t result = 0) {
        say([=](worker::port_sink& s) { s.on_done(token, ok_response(result)); });
    }
    void record(std::vector<std::byte> r) {
        say([r = std::move(r)](worker::port_sink& s) { s.on_record(r); });
    }
    void end() {
        dies = true;
        say([](worker::port_sink&) {});
    }
    void lost(vgpu_lost_reason reason, std::uint32_t detail) {
        say([=](worker::port_sink& s) { s.on_lost(reason, detail); });
    }

    // port
    worker::submit_result submit(const worker::request_view& request) override {
        if (next_submit == worker::submit_result::accepted)
            received.emplace_back(request);
        return next_submit;
    }
    void kick() override { ++kicks; }
    int event_fd() const override { return event_; }
    void drain(worker::port_sink& sink) override {
        std::uint64_t n = 0;
        if (read(event_, &n, sizeof(n)) < 0)
            return;
        for (auto moves = std::exchange(pending_, {}); auto& move : moves)
            move(sink);
    }
    void kill() override { killed = true; }
    bool gone() override { return killed && dies; }
    std::uint64_t progress() const override { return progress_value; }

private:
    int event_;
    std::vector<std::function<void(worker::port_sink&)>> pending_;
};

struct device_harness {
    struct answer {
        std::uint64_t token;
        vgpu_response response;
    };

    explicit device_harness(std::function<void(device_config&)> change = {}) {
        device_config c;
        c.name = "testvm";
        c.max_files = 4;
        c.file = generous;
        c.max_memory_bytes = std::uint64_t{1} << 41;
        c.hash_seed = 99;
        c.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* r) {
            static_cast<device_harness*>(self)->answers.push_back({token, *r});
        };
        c.callbacks.record = [](void* self, const void* r, std::size_t bytes) {
            auto& h = *static_cast<device_harness*>(self);
            if (h.room == 0)
                return -EAGAIN;
            --h.room;
            const auto* begin = static_cast<const std::byte*>(r);
            h.records.emplace_back(begin, begin + bytes);
            return 0;
        };
        c.callbacks.log = [](void* self, int, const char* line) {
            static_cast<device_harness*>(self)->lines.emplace_back(line);
        };
        c.user_data = this;
        if (change)
            change(c);
        std::string error;
        dev = device::create(
            c,
            [this](std::uint32_t file, std::string& e) -> std::unique_ptr<worker::port> {
                if (!start_error.empty()) {
                    e = start_error;
                    return nullptr;
                }
                auto p = std::make_unique<scripted_port>();
                ports[file] = p.get();
                return p;
            },
            error);
        if (!dev)
            throw std::runtime_error(error);
        dev->add_region(0, std::uint64_t{1} << 30);
    }

    std::map<std::uint32_t, scripted_port*> ports; // by file; dangling after the port's end
    std::vector<answer> answers;
    std::vector<std::vector<std::byte>> records;
    std::vector<std::string> lines;
    std::string start_error;
    std::uint64_t room = UINT64_MAX; // records that the guest has buffers for
    std::uint64_t now_ms = 1000;
    std::uint64_t next_token = 1;
    device::origin from = device::origin::guest;
    std::unique_ptr<device> dev; // last: it answers what is in flight when it ends

    void open(std::uint32_t file) { dev->open_file(file, next_token++); }
    void close(std::uint32_t file) { dev->close_file(file, next_token++); }
    std::uint64_t submit(std::uint32_t file, const stream_builder& b) {
        dev->submit(b.request(file, next_token), now_ms, from);
        return next_token++;
    }
    template <class F>
    std::uint64_t submit(std::uint32_t file, F&& build)
        requires std::is_invocable_v<F, stream_builder&>
    {
        stream_builder b;
        build(b);
        return submit(file, b);
    }
    void dispatch() { dev->dispatch(now_ms); }
    // Answers everything that a file's worker was given.
    void answer_all(std::uint32_t file, std::int32_t result = 0) {
        scripted_port& p = *ports.at(file);
        while (!p.received.empty()) {
            p.done(p.received.front().token, result);
            p.received.pop_front();
        }
        dispatch();
    }
    std::vector<vgpu_response> answers_of(std::uint64_t token) const {
        std::vector<vgpu_response> out;
        for (const answer& a : answers)
            if (a.token == token)
                out.push_back(a.response);
        return out;
    }
    // The only answer to this token, or a status that no answer has.
    std::uint32_t status_of(std::uint64_t token) const {
        const auto all = answers_of(token);
        return all.size() == 1 ? all[0].status : 1000 + static_cast<std::uint32_t>(all.size());
    }
    kagemusha_device_stats stats() const {
        kagemusha_device_stats s{};
        dev->stats(s);
        return s;
    }
};

inline constexpr std::uint32_t not_answered = 1000;

} // namespace kagemusha::core::testing
