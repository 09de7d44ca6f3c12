// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/test_device.hpp"

#include <cstring>
#include <stdexcept>
#include <utility>

namespace kagemusha::mirror::testing {

void require(bool condition, const std::string& what) {
    if (!condition)
        throw std::runtime_error(what);
}

test_device::test_device(role r, core::port_factory ports, const std::vector<std::uint64_t>& region_bytes)
    : from_(r == role::standby ? core::device::origin::log : core::device::origin::guest) {
    core::device_config c;
    c.name = r == role::standby ? "standby" : "primary";
    c.max_files = 16;
    c.file = {1024, 65536, 1u << 18, std::uint64_t{1} << 40};
    c.max_memory_bytes = std::uint64_t{1} << 41;
    c.hash_seed = 7;
    c.user_data = this;
    c.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* response) {
        static_cast<test_device*>(self)->answers_[token].push_back(*response);
    };
    c.callbacks.record = [](void* self, const void* record, std::size_t bytes) {
        static_cast<test_device*>(self)->on_record(record, bytes);
        return 0;
    };
    c.callbacks.log = [](void* self, int, const char* line) {
        static_cast<test_device*>(self)->lines.emplace_back(line);
    };
    std::string error;
    device = core::device::create(c, std::move(ports), error);
    require(device != nullptr, error);
    for (std::uint32_t i = 0; i < region_bytes.size(); ++i)
        device->add_region(i, region_bytes[i]);
}

std::uint64_t test_device::submit(std::uint32_t file, const kagemusha_request& request) {
    kagemusha_request r = request;
    r.file = file;
    r.token = next_token++;
    device->submit(r, now_ms, from_);
    return r.token;
}

std::uint64_t test_device::open(std::uint32_t file) {
    device->open_file(file, next_token);
    return next_token++;
}

std::uint64_t test_device::close(std::uint32_t file) {
    device->close_file(file, next_token);
    return next_token++;
}

void test_device::dispatch() {
    for (int i = 0; i < 4; ++i) // what a dispatch sets off may be ready at once
        device->dispatch(now_ms);
}

const vgpu_response* test_device::answer_of(std::uint64_t token) const {
    const auto at = answers_.find(token);
    if (at == answers_.end())
        return nullptr;
    require(at->second.size() == 1, "a request was answered twice");
    return &at->second.front();
}

void test_device::on_record(const void* bytes, std::size_t length) {
    const auto* begin = static_cast<const std::byte*>(bytes);
    records.emplace_back(begin, begin + length);
    vgpu_record header;
    std::memcpy(&header, bytes, sizeof(header));
    if (header.type == VGPU_RECORD_COMPLETION && length >= sizeof(vgpu_record_completion)) {
        vgpu_record_completion c;
        std::memcpy(&c, bytes, sizeof(c));
        events_[c.event] = c.status;
        if ((c.event & agent_id_bit) != 0 && c.status < 0) {
            failures.push_back("event " + std::to_string(c.event & ~agent_id_bit) + ": " +
                               std::to_string(c.status));
        }
    } else if (header.type == VGPU_RECORD_QUEUE_ERROR && length >= sizeof(vgpu_record_queue_error)) {
        vgpu_record_queue_error e;
        std::memcpy(&e, bytes, sizeof(e));
        if ((e.queue & agent_id_bit) != 0)
            failures.push_back("opcode " + std::to_string(e.opcode) + ": " + std::to_string(e.error));
    } else if (header.type == VGPU_RECORD_LOST) {
        failures.emplace_back("the file was lost");
    }
}

} // namespace kagemusha::mirror::testing
