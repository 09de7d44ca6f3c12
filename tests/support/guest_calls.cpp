// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/guest_calls.hpp"

#include <gtest/gtest.h>

namespace kagemusha::test {

using codec::stream_builder;

vgpu_response guest_calls::run(const stream_builder& b) {
    const std::uint64_t token = submit(b);
    if (!wait_until([&] { return answered(token); }, "an answer"))
        return {};
    return answer(token);
}

void guest_calls::ok(const stream_builder& b) {
    const vgpu_response r = run(b);
    EXPECT_EQ(r.status, static_cast<std::uint32_t>(VGPU_STATUS_OK)) << "at " << r.failed_offset;
    EXPECT_EQ(r.result, 0);
}

std::int32_t guest_calls::complete(std::uint64_t event) {
    return wait_until([&] { return completed(event); }, "a completion") ? status_of(event) : 0;
}

std::uint64_t guest_calls::context() {
    const auto id = new_id();
    ok(stream_builder().create_context(id));
    return id;
}

std::uint64_t guest_calls::queue(std::uint64_t context, std::uint64_t properties) {
    const auto id = new_id();
    ok(stream_builder().create_queue(id, context, properties));
    return id;
}

std::uint64_t guest_calls::buffer(std::uint64_t context, std::uint64_t bytes, std::uint64_t flags) {
    const auto id = new_id();
    ok(stream_builder().create_buffer(id, context, bytes, flags));
    return id;
}

std::uint64_t guest_calls::kernel(std::uint64_t context, std::string_view source, std::string_view name) {
    const auto program = new_id(), id = new_id();
    ok(stream_builder().create_program(program, context, source));
    ok(stream_builder().build_program(program));
    ok(stream_builder().create_kernel(id, program, name));
    return id;
}

void guest_calls::write(std::uint64_t queue, std::uint64_t buffer, std::uint64_t memory_offset,
                        std::uint64_t bytes, std::uint64_t buffer_offset) {
    const auto event = new_id();
    stream_builder b;
    const vgpu_payload_ref ref = b.payload(false, 0, memory_offset, bytes);
    ok(b.write_buffer({queue, event, {}}, buffer, buffer_offset, ref));
    EXPECT_EQ(complete(event), 0);
    destroy(VGPU_OBJECT_EVENT, event);
}

void guest_calls::read(std::uint64_t queue, std::uint64_t buffer, std::uint64_t memory_offset,
                       std::uint64_t bytes) {
    const auto event = new_id();
    stream_builder b;
    const vgpu_payload_ref ref = b.payload(true, 0, memory_offset, bytes);
    ok(b.read_buffer({queue, event, {}}, buffer, 0, ref));
    EXPECT_EQ(complete(event), 0);
    destroy(VGPU_OBJECT_EVENT, event);
}

void guest_calls::finish(std::uint64_t queue) {
    const auto event = new_id();
    ok(stream_builder().marker({queue, event, {}}));
    EXPECT_EQ(complete(event), 0);
    destroy(VGPU_OBJECT_EVENT, event);
}

void guest_calls::destroy(vgpu_object_kind kind, std::uint64_t id) {
    ok(stream_builder().destroy(kind, id));
}

} // namespace kagemusha::test
