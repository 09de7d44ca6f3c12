// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/instant_device.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace kagemusha::mirror::testing {

namespace {

constexpr std::uint64_t peek_bytes = 1u << 20;

// What the tests' own look at an executor uses; neither the guest nor an agent does.
constexpr guest_id peek_queue = agent_id_bit | 0x1234567;

} // namespace

instant_port::instant_port(std::span<const gpu::region_view> regions)
    : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto opened = gpu::open_gpu("null", "", "memory=1");
    require(opened.device != nullptr, opened.error);
    executor_ = std::make_unique<gpu::executor>(std::move(opened.device), regions, *this);
}

instant_port::~instant_port() {
    executor_.reset();
    close(event_);
}

vgpu_response instant_port::peek(const stream_builder& b) {
    quiet_.emplace();
    const kagemusha_request r = b.request(1, 0);
    executor_->execute({0, b.stream(), {r.payloads, r.payload_count}, {r.segments, r.segment_count}});
    return *std::exchange(quiet_, std::nullopt);
}

void instant_port::lose() {
    say([](worker::port_sink& s) { s.on_lost(VGPU_LOST_CRASHED, 9); });
}

worker::submit_result instant_port::submit(const worker::request_view& request) {
    if (is_full()) {
        say([](worker::port_sink&) {}); // there will be room
        return worker::submit_result::full;
    }
    tokens.push_back(request.token);
    executor_->execute(request);
    return worker::submit_result::accepted;
}

void instant_port::drain(worker::port_sink& sink) {
    std::uint64_t n = 0;
    if (read(event_, &n, sizeof(n)) < 0)
        return;
    for (auto said = std::exchange(said_, {}); auto& f : said)
        f(sink);
}

void instant_port::on_done(std::uint64_t token, const vgpu_response& response) {
    if (quiet_) {
        *quiet_ = response;
        return;
    }
    say([=](worker::port_sink& s) { s.on_done(token, response); });
}

void instant_port::on_written(std::uint64_t token, std::uint32_t payload) {
    if (!quiet_)
        say([=](worker::port_sink& s) { s.on_written(token, payload); });
}

void instant_port::on_record(std::span<const std::byte> record) {
    if (!quiet_) {
        say([r = std::vector<std::byte>(record.begin(), record.end())](worker::port_sink& s) {
            s.on_record(r);
        });
    }
}

void instant_port::say(std::function<void(worker::port_sink&)> f) {
    said_.push_back(std::move(f));
    const std::uint64_t one = 1;
    require(::write(event_, &one, sizeof(one)) == sizeof(one), "eventfd");
}

instant_memory::instant_memory(std::uint64_t bytes)
    : memory(bytes)
    , peeked(peek_bytes)
    , views{{memory.data(), memory.size()}, {peeked.data(), peeked.size()}} {}

instant_device::instant_device(role r, std::uint64_t memory_bytes)
    : instant_memory(memory_bytes)
    , test_device(r,
                  [this](std::uint32_t file, std::string&) -> std::unique_ptr<worker::port> {
                      auto p = std::make_unique<instant_port>(views);
                      p->is_full = is_full;
                      ports[file] = p.get();
                      return p;
                  },
                  {memory_bytes}) {}

std::vector<std::byte> instant_device::content(std::uint32_t file, guest_id context, guest_id buffer,
                                               std::uint64_t bytes) {
    instant_port& port = *ports.at(file);
    stream_builder make, read, end;
    make.create_queue(peek_queue, context);
    require(port.peek(make).result == 0, "no queue to look at a buffer with");
    std::fill(peeked.begin(), peeked.end(), std::byte{0xee});
    const vgpu_payload_ref to = read.payload(true, 1, 0, bytes);
    read.read_buffer({peek_queue, 0, {}}, buffer, 0, to);
    require(port.peek(read).status == VGPU_STATUS_OK, "a buffer can't be read");
    end.destroy(VGPU_OBJECT_QUEUE, peek_queue);
    port.peek(end);
    return {peeked.begin(), peeked.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

} // namespace kagemusha::mirror::testing
