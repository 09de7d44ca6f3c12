// SPDX-License-Identifier: GPL-2.0-or-later
// Streams that break one rule each: a table per opcode, and generic corruption of every command of the sample
// session.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <random>

#include "codec/cl_numbers.hpp"
#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "codec/sample_session.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::codec {
namespace {

struct outcome {
    decode_status status;
    std::uint32_t ops;
    const char* message;
    std::uint32_t offset;
    unsigned touched; // a sum over everything the ops point at
};

// Walks until the end or the first error and touches everything that an op points at, so that a sanitizer
// sees an op that points outside its stream.
outcome walk(std::span<const std::byte> stream, std::span<const kagemusha_payload> payloads) {
    stream_decoder decoder(stream, {payloads});
    op o;
    std::uint32_t ops = 0;
    unsigned touched = 0;
    for (;;) {
        const decode_status status = decoder.next(o);
        if (status != decode_status::op)
            return {status, ops, decoder.error().message, decoder.error().offset, touched};
        ++ops;
        for (const guest_id id : waits_of(o))
            touched += static_cast<unsigned>(id);
        if (const auto* w = std::get_if<op_write_runs>(&o)) {
            w->runs.for_each([&](const buffer_run& r) {
                touched += static_cast<unsigned>(w->bytes[r.from]) +
                           static_cast<unsigned>(w->bytes[r.from + r.bytes - 1]);
            });
        }
        if (const auto* l = std::get_if<op_launch>(&o)) {
            l->arguments.for_each([&](const launch_argument& a) {
                for (const std::byte b : a.value)
                    touched += static_cast<unsigned>(b);
            });
        }
    }
}

outcome walk(const stream_builder& b) {
    return walk(b.stream(), b.payloads());
}

struct hostile {
    const char* name;
    std::function<void(stream_builder&)> build;
    const char* message; // part of the expected sentence
};

template <class Command>
Command& command(stream_builder& b) {
    return *reinterpret_cast<Command*>(b.mutable_stream().data());
}

const std::vector<std::byte> eight(8, std::byte{1});

std::vector<std::byte> octets(auto... values) {
    return {static_cast<std::byte>(values)...};
}

const enqueue_ref e{1, 2, {3}};

std::byte& octet(stream_builder& b, std::size_t at) {
    return b.mutable_stream()[at];
}

// A question for a group size, with room for the answer.
vgpu_cmd_suggested_group_size group_size(stream_builder& b, std::uint64_t room = 24) {
    return {{}, 1, 2, 1, 0, {0, 0, 0}, {64, 1, 1}, b.payload(true, 0, 0, room), 0, 0};
}

// clang-format off
const hostile table[] = {
    {"group size: room", [](auto& b) { b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, group_size(b, 16)); }, "room for a suggested size"},
    {"group size: no room", [](auto& b) { auto c = group_size(b); c.result = no_payload; b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c); }, "room for a suggested size"},
    {"group size: dimensions", [](auto& b) { auto c = group_size(b); c.work_dim = 4; b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c); }, "more than 3 dimensions"},
    {"group size: unused dimension", [](auto& b) { auto c = group_size(b); c.global[1] = 2; b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c); }, "unused dimension"},
    {"group size: overflow", [](auto& b) { auto c = group_size(b); c.offset[0] = UINT64_MAX; b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c); }, "overflow"},

    // header
    {"unknown opcode 0", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).opcode = 0; }, "unknown opcode"},
    {"opcode in the gap", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).opcode = VGPU_FIRST_ENQUEUE - 1; }, "unknown opcode"},
    {"opcode beyond the last", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).opcode = VGPU_OPCODE_COUNT; }, "unknown opcode"},
    {"header flags", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).flags = 1; }, "unknown flag"},
    {"length 0", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).bytes = 0; }, "command's length"},
    {"length not a multiple of 8", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).bytes = 12; }, "command's length"},
    {"length beyond the stream", [](auto& b) { b.flush(1); command<vgpu_cmd>(b).bytes = 24; }, "command's length"},
    {"length beyond the cap", [](auto& b) { b.write_buffer(e, 4, 0, std::vector<std::byte>(VGPU_MAX_COMMAND_BYTES)); }, "command's length"},
    {"length shorter than the structure", [](auto& b) { b.marker({1, 0, {}}); command<vgpu_cmd>(b).bytes = 16; }, "shorter than its opcode"},
    {"more than it contains", [](auto& b) { b.flush(1).bytes(eight); }, "longer than what it contains"},
    {"call in the middle", [](auto& b) { b.create_context(1).flush(2); }, "not the last"},
    // wait lists
    {"queue 0", [](auto& b) { b.marker({0, 0, {}}); }, "is 0"},
    {"wait for 0", [](auto& b) { b.marker({1, 0, {2, 0}}); }, "in a list is 0"},
    {"wait count too large", [](auto& b) { b.marker({1, 0, std::vector<std::uint64_t>(VGPU_MAX_WAIT_COUNT + 1, 5)}); }, "VGPU_MAX_WAIT_COUNT"},
    {"wait count beyond the command", [](auto& b) { b.marker({1, 0, {2}}); command<vgpu_cmd_sync>(b).enqueue.wait_count = 2; }, "longer than the command"},
    {"wait count huge", [](auto& b) { b.marker({1, 0, {2}}); command<vgpu_cmd_sync>(b).enqueue.wait_count = 0xffffffff; }, "VGPU_MAX_WAIT_COUNT"},
    {"enqueue pad", [](auto& b) { b.marker({1, 0, {}}); command<vgpu_cmd_sync>(b).enqueue.pad = 1; }, "pad field"},
    // payloads
    {"payload beyond the table", [](auto& b) { b.read_buffer(e, 4, 0, {8, 0, 0}); }, "beyond the payload table"},
    {"payload of another length", [](auto& b) { auto p = b.payload(true, 0, 0, 8); p.bytes = 16; b.read_buffer(e, 4, 0, p); }, "table entry"},
    {"payload pad", [](auto& b) { auto p = b.payload(true, 0, 0, 8); p.pad = 1; b.read_buffer(e, 4, 0, p); }, "pad field"},
    {"read into a read-only payload", [](auto& b) { b.read_buffer(e, 4, 0, b.payload(false, 0, 0, 8)); }, "direction"},
    {"write from a writable payload", [](auto& b) { b.write_buffer(e, 4, 0, b.payload(true, 0, 0, 8)); }, "direction"},
    {"payload used twice", [](auto& b) { auto p = b.payload(true, 0, 0, 8); b.read_buffer(e, 4, 0, p).read_buffer(e, 4, 0, p); }, "two commands"},
    {"nothing with a length", [](auto& b) { b.read_buffer(e, 4, 0, {8, VGPU_PAYLOAD_NONE, 0}); }, "has a length"},
    {"transfer of nothing", [](auto& b) { b.read_buffer(e, 4, 0, no_payload); }, "0 bytes"},
    {"read inline", [](auto& b) { b.read_buffer(e, 4, 0, {8, VGPU_PAYLOAD_INLINE, 0}); }, "can't be inline"},
    {"inline of 0", [](auto& b) { b.write_buffer(e, 4, 0, vgpu_payload_ref{0, VGPU_PAYLOAD_INLINE, 0}); }, "inline payload is empty"},
    {"inline too long", [](auto& b) { b.write_buffer(e, 4, 0, std::vector<std::byte>(VGPU_MAX_INLINE_PAYLOAD_BYTES + 1)); }, "inline payload"},
    {"inline beyond the command", [](auto& b) { b.write_buffer(e, 4, 0, vgpu_payload_ref{8, VGPU_PAYLOAD_INLINE, 0}); }, "longer than the command"},
    {"inline padding", [](auto& b) { b.write_buffer(e, 4, 0, eight); command<vgpu_cmd_transfer_buffer>(b).data.bytes = 5; }, "padding"},
    // runs
    {"runs: queue 0", [](auto& b) { b.write_runs(0, 4, eight, octets(0, 8)); }, "is 0"},
    {"runs: buffer 0", [](auto& b) { b.write_runs(1, 0, eight, octets(0, 8)); }, "is 0"},
    {"runs: length 0", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8)); octet(b, 2) = std::byte{0}; }, "command's length"},
    {"runs: length beyond the stream", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8)); octet(b, 3) = std::byte{1}; }, "command's length"},
    {"runs: queue ends with the command", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8)); octet(b, 2) = std::byte{1}; for (unsigned i = 4; i < 8; ++i) octet(b, i) = std::byte{0x80}; }, "middle of a number"},
    {"runs: queue not the shortest", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8)); octet(b, 4) = std::byte{0x81}; octet(b, 5) = std::byte{0}; }, "not the shortest"},
    {"runs: queue of 65 bits", [](auto& b) { b.write_runs(UINT64_MAX, 4, eight, octets(0, 8)); octet(b, 13) = std::byte{2}; }, "too large"},
    {"runs: no data", [](auto& b) { b.write_runs(1, 4, {}, octets(0, 1)); octet(b, 2) = std::byte{1}; octet(b, 6) = std::byte{1}; }, "middle of a number"},
    {"runs: less data", [](auto& b) { b.write_runs(1, 4, octets(0, 1, 2), octets(0, 8)); }, "longer than their data"},
    {"runs: too much data", [](auto& b) { b.write_runs(1, 4, std::vector<std::byte>(VGPU_MAX_INLINE_PAYLOAD_BYTES + 1), octets(0, 0x81, 0x80, 1)); }, "longer than their data"},
    {"runs: none", [](auto& b) { b.write_runs(1, 4, eight, {}); }, "has no runs"},
    {"runs: too many bytes of them", [](auto& b) { b.write_runs(1, 4, eight, std::vector<std::byte>(VGPU_MAX_RUN_BYTES + 1)); }, "VGPU_MAX_RUN_BYTES"},
    {"runs: beyond the command", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8)); octet(b, 6) = std::byte{18}; }, "longer than the command"},
    {"runs: padding", [](auto& b) { b.write_runs(1, 4, octets(0), octets(0, 1)); for (unsigned i = 10; i < 16; ++i) octet(b, i) = std::byte{0}; octet(b, 15) = std::byte{1}; }, "padding"},
    {"runs: shorter than the data", [](auto& b) { b.write_runs(1, 4, std::vector<std::byte>(24), octets(0, 7)); }, "shorter than their data"},
    {"runs: longer than the data", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 16)); }, "longer than their data"},
    {"runs: together longer than the data", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8, 1, 1)); }, "longer than their data"},
    {"runs: an empty one", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 0, 0, 8)); }, "empty"},
    {"runs: no length", [](auto& b) { b.write_runs(1, 4, eight, octets(0)); }, "middle of a number"},
    {"runs: half a number", [](auto& b) { b.write_runs(1, 4, eight, octets(0x80)); }, "middle of a number"},
    {"runs: not the shortest number", [](auto& b) { b.write_runs(1, 4, eight, octets(0x80, 0, 8)); }, "not the shortest"},
    {"runs: number of 65 bits", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2)); }, "too large"},
    {"runs: number too long", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1)); }, "too large"},
    {"runs: a length of 2^63", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1)); }, "longer than their data"},
    {"runs: the first one like another", [](auto& b) { b.write_runs(1, 4, eight, octets(1)); }, "one before it"},
    {"runs: the first one repeated", [](auto& b) { b.write_runs(1, 4, eight, octets(4 | 2)); }, "none before it"},
    {"runs: repeated 0 times", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 8, 2)); }, "repetition of no run"},
    {"runs: repeated beyond the data", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 1, 16 << 2 | 2)); }, "longer than their data"},
    {"runs: repeated very often", [](auto& b) { b.write_runs(1, 4, eight, octets(0, 1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)); }, "longer than their data"},
    {"runs: too many", [](auto& b) { b.write_runs(1, 4, std::vector<std::byte>(VGPU_MAX_RUNS + 1), octets(0, 1, 0x82, 0x80, 1)); }, "VGPU_MAX_RUNS"},
    {"runs: unknown kind", [](auto& b) { b.write_runs(1, 4, eight, octets(3)); }, "unknown kind"},
    {"runs: overflow", [](auto& b) { b.write_runs(1, 4, eight, octets(0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)); }, "overflow"},
    // calls
    {"info subject 0", [](auto& b) { b.info(0, 0, 0, 0, no_payload); }, "subject"},
    {"info subject unknown", [](auto& b) { b.info(VGPU_INFO_TIMERS + 1, 0, 0, 0, no_payload); }, "subject"},
    {"info platform with object", [](auto& b) { b.info(VGPU_INFO_PLATFORM, 0, 5, 0, no_payload); }, "names no object"},
    {"info kernel without object", [](auto& b) { b.info(VGPU_INFO_KERNEL, 0, 0, 0, no_payload); }, "names no object"},
    {"info result too large", [](auto& b) { b.info(VGPU_INFO_DEVICE, 0, 0, 0, b.payload(true, 0, 0, VGPU_MAX_RESULT_BYTES + 1)); }, "VGPU_MAX_RESULT_BYTES"},
    {"info input not for it", [](auto& b) { b.info(VGPU_INFO_DEVICE, 0, 0, 0, no_payload, eight); }, "sub-groups"},
    {"info tensor map too short", [](auto& b) { b.info(VGPU_INFO_DEVICE, VGPU_CUDA_TENSOR_MAP, 0, 0, no_payload, eight); }, "sub-groups"},
    {"info input from the table", [](auto& b) { b.info(VGPU_INFO_KERNEL_SUB_GROUP, 0, 1, 0, no_payload); b.payload(false, 0, 0, 8); command<vgpu_cmd_info>(b).input = {8, 0, 0}; }, "must be inline"},
    {"context id 0", [](auto& b) { b.create_context(0); }, "is 0"},
    {"context flags", [](auto& b) { b.create_context(1); command<vgpu_cmd_create_context>(b).flags = 1; }, "unknown flag"},
    {"queue properties", [](auto& b) { b.create_queue(1, 2, 4); }, "unknown flag"},
    {"queue on device", [](auto& b) { b.create_queue(1, 2, 1u << 2); }, "unknown flag"},
    {"queue pad", [](auto& b) { b.create_queue(1, 2); command<vgpu_cmd_create_queue>(b).pad = 1; }, "pad field"},
    {"buffer of 0 bytes", [](auto& b) { b.create_buffer(1, 2, 0); }, "buffer of 0"},
    {"buffer with host pointer", [](auto& b) { b.create_buffer(1, 2, 8, 1u << 3); }, "unknown flag"},
    {"buffer flags 64 bit", [](auto& b) { b.create_buffer(1, 2, 8, 1ull << 40); }, "unknown flag"},
    {"buffer read only and write only", [](auto& b) { b.create_buffer(1, 2, 8, cl_mem_read_only | cl_mem_write_only); }, "contradict"},
    {"buffer host flags", [](auto& b) { b.create_buffer(1, 2, 8, cl_mem_host_no_access | cl_mem_host_read_only); }, "contradict"},
    {"buffer content too short", [](auto& b) { b.create_buffer(1, 2, 16, 1, b.payload(false, 0, 0, 8)); }, "not as long"},
    {"buffer content writable", [](auto& b) { b.create_buffer(1, 2, 8, 1, b.payload(true, 0, 0, 8)); }, "direction"},
    {"sub-buffer overflow", [](auto& b) { b.create_sub_buffer(1, 2, UINT64_MAX, 2); }, "overflow"},
    {"sub-buffer of 0 bytes", [](auto& b) { b.create_sub_buffer(1, 2, 0, 0); }, "0 bytes"},
    {"image type", [](auto& b) { b.create_image_2d(1, 2, 3, 4); command<vgpu_cmd_create_image>(b).image_type = 0x10F0; }, "image type"},
    {"image mip levels", [](auto& b) { b.create_image_2d(1, 2, 3, 4); command<vgpu_cmd_create_image>(b).mip_levels = 1; }, "mip"},
    {"image width 0", [](auto& b) { b.create_image_2d(1, 2, 0, 4); }, "width"},
    {"buffer image without buffer", [](auto& b) { b.create_image_2d(1, 2, 3, 4); command<vgpu_cmd_create_image>(b).image_type = cl_mem_object_image1d_buffer; }, "without a buffer"},
    {"sampler truth", [](auto& b) { b.create_sampler(1, 2); command<vgpu_cmd_create_sampler>(b).normalized = 2; }, "truth"},
    {"sampler addressing", [](auto& b) { b.create_sampler(1, 2); command<vgpu_cmd_create_sampler>(b).addressing = 0x1135; }, "addressing"},
    {"sampler filter", [](auto& b) { b.create_sampler(1, 2); command<vgpu_cmd_create_sampler>(b).filter = 0; }, "filter"},
    {"program kind", [](auto& b) { b.create_program(1, 2, "x"); command<vgpu_cmd_create_program>(b).kind = 5; }, "kind of program"},
    {"program without binary", [](auto& b) { b.create_program(1, 2, VGPU_PROGRAM_BINARY, no_payload); }, "without content"},
    {"program too large", [](auto& b) { b.create_program(1, 2, VGPU_PROGRAM_IL, b.payload(false, 0, 0, VGPU_MAX_PROGRAM_BYTES + 1)); }, "VGPU_MAX_PROGRAM_BYTES"},
    {"build options too long", [](auto& b) { b.build_program(1, std::string(VGPU_MAX_OPTIONS_BYTES + 1, 'x')); }, "longer than its limit"},
    {"build options with 0", [](auto& b) { b.build_program(1, std::string_view("a\0b", 3)); }, "0 byte"},
    {"build options beyond", [](auto& b) { b.build_program(1, "abc"); command<vgpu_cmd_build_program>(b).options_bytes = 16; }, "longer than the command"},
    {"compile without names", [](auto& b) { b.compile_program(1, "", std::array<std::uint64_t, 1>{2}, {}); }, "one per header"},
    {"compile name not ended", [](auto& b) { b.compile_program(1, "", std::array<std::uint64_t, 1>{2}, std::array<std::string_view, 1>{std::string_view("a\0b", 3)}); command<vgpu_cmd_compile_program>(b).names_bytes = 3; }, "one per header"},
    {"compile header count huge", [](auto& b) { b.compile_program(1, "", {}, {}); command<vgpu_cmd_compile_program>(b).header_count = 0xffffffff; }, "longer than the command"},
    {"link of nothing", [](auto& b) { b.link_program(1, 2, {}); }, "without programs"},
    {"link of 0", [](auto& b) { b.link_program(1, 2, std::array<std::uint64_t, 1>{0}); }, "in a list is 0"},
    {"kernel without name", [](auto& b) { b.create_kernel(1, 2, ""); }, "without a name"},
    {"kernel name too long", [](auto& b) { b.create_kernel(1, 2, std::string(VGPU_MAX_NAME_BYTES + 1, 'k')); }, "longer than its limit"},
    {"user event id 0", [](auto& b) { b.create_user_event(0, 1); }, "is 0"},
    {"spec constant of 0 bytes", [](auto& b) { b.set_spec_constant(1, 0, {}); }, "less than 1"},
    {"spec constant of 17 bytes", [](auto& b) { b.set_spec_constant(1, 0, std::vector<std::byte>(17)); }, "more than 16"},
    // neither answered nor enqueued
    {"user event running", [](auto& b) { b.set_user_event(1, 1); }, "status"},
    {"destroy kind", [](auto& b) { b.destroy(static_cast<vgpu_object_kind>(8), 1); }, "kind of object"},
    {"destroy 0", [](auto& b) { b.destroy(VGPU_OBJECT_EVENT, 0); }, "is 0"},
    {"flush 0", [](auto& b) { b.flush(0); }, "is 0"},
    // enqueued
    {"write overflow", [](auto& b) { b.write_buffer(e, 4, UINT64_MAX - 3, eight); }, "overflow"},
    {"rect side 0", [](auto& b) { b.transfer_rect(true, e, 4, {{0, 0, 0}}, {{8, 0, 1}}, 8, 8, b.payload(false, 0, 0, 8)); }, "side of 0"},
    {"rect pitch too short", [](auto& b) { b.transfer_rect(true, e, 4, {{0, 0, 0}}, {{8, 1, 1}}, 7, 8, b.payload(false, 0, 0, 8)); }, "row pitch"},
    {"rect slice too short", [](auto& b) { b.transfer_rect(true, e, 4, {{0, 0, 0}}, {{8, 2, 1}}, 8, 15, b.payload(false, 0, 0, 16)); }, "slice pitch"},
    {"rect pitch overflow", [](auto& b) { b.transfer_rect(true, e, 4, {{0, 0, 0}}, {{8, 1ull << 40, 1}}, 1ull << 40, 8, b.payload(false, 0, 0, 16)); }, "slice pitch"},
    {"rect origin overflow", [](auto& b) { b.transfer_rect(true, e, 4, {{0, 0, 1ull << 62}}, {{8, 1, 1}}, 8, 8, b.payload(false, 0, 0, 8)); }, "end overflows"},
    {"rect payload length", [](auto& b) { b.transfer_rect(true, e, 4, {{0, 0, 0}}, {{8, 2, 1}}, 8, 16, b.payload(false, 0, 0, 15)); }, "as long as the rectangle"},
    {"copy of 0", [](auto& b) { b.copy_buffer(e, 4, 5, 0, 0, 0); }, "0 bytes"},
    {"copy overflow", [](auto& b) { b.copy_buffer(e, 4, 5, 0, UINT64_MAX, 2); }, "overflow"},
    {"copy from 0", [](auto& b) { b.copy_buffer(e, 0, 5, 0, 0, 2); }, "is 0"},
    {"copy rect overflow", [](auto& b) { b.copy_rect(e, 4, 5, {{0, 1ull << 63, 0}}, {{0, 0, 0}}, {{8, 1, 1}}, 8, 8); }, "end overflows"},
    {"fill pattern of 3", [](auto& b) { b.fill_buffer(e, 4, 0, 6, std::vector<std::byte>(3)); }, "power of two"},
    {"fill pattern of 0", [](auto& b) { b.fill_buffer(e, 4, 0, 6, {}); }, "power of two"},
    {"fill pattern of 256", [](auto& b) { b.fill_buffer(e, 4, 0, 256, std::vector<std::byte>(256)); }, "power of two"},
    {"fill pattern tail", [](auto& b) { b.fill_buffer(e, 4, 0, 8, eight); command<vgpu_cmd_fill_buffer>(b).pattern[8] = 1; }, "padding"},
    {"fill not a multiple", [](auto& b) { b.fill_buffer(e, 4, 0, 12, eight); }, "multiple of its pattern"},
    {"fill overflow", [](auto& b) { b.fill_buffer(e, 4, UINT64_MAX - 7, 16, eight); }, "overflow"},
    {"image region 0", [](auto& b) { b.transfer_image(true, e, 4, {{0, 0, 0}}, {{1, 1, 0}}, 8, 0, b.payload(false, 0, 0, 8)); }, "side of 0"},
    {"image origin overflow", [](auto& b) { b.fill_image(e, 4, {{0, UINT64_MAX, 0}}, {{1, 1, 1}}); }, "overflow"},
    {"image row pitch 0", [](auto& b) { b.transfer_image(true, e, 4, {{0, 0, 0}}, {{1, 1, 1}}, 0, 0, b.payload(false, 0, 0, 8)); }, "row pitch"},
    {"copy image overflow", [](auto& b) { b.copy_image(e, 4, 5, {{0, 0, 0}}, {{UINT64_MAX, 0, 0}}, {{1, 1, 1}}); }, "overflow"},
    {"copy image to buffer 0", [](auto& b) { b.copy_image_buffer(true, e, 4, 0, {{0, 0, 0}}, {{1, 1, 1}}, 0); }, "is 0"},
    {"launch without dimensions", [](auto& b) { b.launch(e, 4, {0, {1, 1, 1}, {}, {}}); }, "dimensions"},
    {"launch with 4 dimensions", [](auto& b) { b.launch(e, 4, {4, {1, 1, 1}, {}, {}}); }, "dimensions"},
    {"launch flags", [](auto& b) { b.launch(e, 4, {}); command<vgpu_cmd_launch>(b).flags = 8; }, "unknown flag"},
    {"launch unused dimension", [](auto& b) { b.launch(e, 4, {1, {8, 2, 1}, {}, {}}); }, "unused dimension"},
    {"launch offset overflow", [](auto& b) { b.launch(e, 4, {1, {8, 1, 1}, {}, {UINT64_MAX, 0, 0}}); }, "overflow"},
    {"launch local 0", [](auto& b) { b.launch(e, 4, {2, {8, 8, 1}, {8, 0, 0}, {}}); }, "local size of 0"},
    {"launch too many arguments", [](auto& b) { b.launch(e, 4, {}); command<vgpu_cmd_launch>(b).argument_count = 257; }, "VGPU_MAX_ARGUMENTS"},
    {"launch arguments missing", [](auto& b) { b.launch(e, 4, {}); command<vgpu_cmd_launch>(b).argument_count = 1; }, "fewer argument bytes"},
    {"launch argument bytes odd", [](auto& b) { b.launch(e, 4, {}, argument_builder{}.local(0, 4)); command<vgpu_cmd_launch>(b).argument_bytes = 12; }, "multiple of 8"},
    {"launch argument bytes beyond", [](auto& b) { b.launch(e, 4, {}); command<vgpu_cmd_launch>(b).argument_bytes = 0xfffffff8; }, "longer than the command"},
    {"launch arguments left over", [](auto& b) { b.launch(e, 4, {}, argument_builder{}.local(0, 4)); command<vgpu_cmd_launch>(b).argument_count = 0; }, "more argument bytes"},
    {"launch argument order", [](auto& b) { b.launch(e, 4, {}, argument_builder{}.local(1, 4).local(1, 4)); }, "ascend"},
    {"launch argument index", [](auto& b) { b.launch(e, 4, {}, argument_builder{}.local(VGPU_MAX_ARGUMENTS, 4)); }, "ascend"},
    {"launch argument of 0 bytes", [](auto& b) { b.launch(e, 4, {}, argument_builder{}.local(0, 0)); }, "0 bytes"},
    {"launch sampler 0", [](auto& b) { b.launch(e, 4, {}, argument_builder{}.sampler(0, 0)); }, "is 0"},
    {"migrate nothing", [](auto& b) { b.migrate(e, {}); }, "nothing"},
    {"migrate flags", [](auto& b) { b.migrate(e, std::array<std::uint64_t, 1>{4}, 4); }, "unknown flag"},
    {"migrate count", [](auto& b) { b.migrate(e, std::array<std::uint64_t, 1>{4}); command<vgpu_cmd_migrate>(b).object_count = 0x20000000; }, "longer than the command"},
};
// clang-format on

TEST(decode_hostile, every_broken_rule_has_its_sentence) {
    for (const hostile& h : table) {
        SCOPED_TRACE(h.name);
        stream_builder b;
        h.build(b);
        const outcome o = walk(b);
        EXPECT_EQ(o.status, decode_status::error);
        ASSERT_NE(o.message, nullptr);
        EXPECT_NE(std::string_view(o.message).find(h.message), std::string_view::npos) << o.message;
    }
}

TEST(decode_hostile, argument_kinds_and_lengths) {
    const auto at = sizeof(vgpu_cmd_launch);
    const auto argument = [&](std::uint32_t kind, std::uint64_t bytes) {
        stream_builder b;
        b.launch({1, 0, {}}, 4, {}, argument_builder{}.memory(0, 5));
        auto& a = *reinterpret_cast<vgpu_argument*>(b.mutable_stream().data() + at);
        a.kind = kind;
        a.bytes = bytes;
        return walk(b).status;
    };
    EXPECT_EQ(argument(VGPU_ARGUMENT_MEMORY, 8), decode_status::end);
    EXPECT_EQ(argument(VGPU_ARGUMENT_BYTES, 8), decode_status::end);
    EXPECT_EQ(argument(0, 8), decode_status::error);
    EXPECT_EQ(argument(5, 8), decode_status::error);
    EXPECT_EQ(argument(VGPU_ARGUMENT_MEMORY, 4), decode_status::error);
    EXPECT_EQ(argument(VGPU_ARGUMENT_BYTES, 9), decode_status::error);
    EXPECT_EQ(argument(VGPU_ARGUMENT_BYTES, UINT64_MAX), decode_status::error);
    EXPECT_EQ(argument(VGPU_ARGUMENT_BYTES, UINT64_MAX - 6), decode_status::error);
}

TEST(decode_hostile, an_error_names_the_offset_and_stays) {
    stream_builder b;
    b.flush(1).flush(0);
    stream_decoder decoder(b.stream(), {});
    op o;
    ASSERT_EQ(decoder.next(o), decode_status::op);
    EXPECT_EQ(decoder.next(o), decode_status::error);
    EXPECT_EQ(decoder.error().offset, sizeof(vgpu_cmd_flush));
    EXPECT_EQ(decoder.next(o), decode_status::error);
}

TEST(decode_hostile, streams_and_tables_beyond_the_caps_are_refused) {
    std::vector<std::uint64_t> words(VGPU_MAX_STREAM_BYTES / 8 + 1);
    EXPECT_EQ(walk(std::as_bytes(std::span(words)), {}).status, decode_status::error);
    EXPECT_EQ(walk(std::as_bytes(std::span(words)).first(12), {}).status, decode_status::error);
    const std::vector<kagemusha_payload> payloads(VGPU_MAX_PAYLOADS + 1);
    stream_builder b;
    b.flush(1);
    EXPECT_EQ(walk(b.stream(), payloads).status, decode_status::error);
}

// Whatever the decoder refuses, it must refuse every prefix of a valid command.
TEST(decode_hostile, every_truncation_of_every_opcode_is_refused) {
    for (const sample_request& r : sample_session()) {
        SCOPED_TRACE(r.name);
        stream_builder b = r.builder;
        auto& header = command<vgpu_cmd>(b);
        const std::uint32_t bytes = command_bytes(header);
        for (std::uint32_t cut = 8; cut < bytes; cut += 8) {
            if (header.opcode == VGPU_CMD_WRITE_RUNS)
                header.flags = static_cast<std::uint16_t>(cut / 8); // where it has its length
            else
                header.bytes = cut;
            const outcome o = walk(b.stream().first(cut), b.payloads());
            EXPECT_EQ(o.status, decode_status::error) << "cut to " << cut;
        }
    }
}

// Random damage: the decoder may accept or refuse, but never reads outside (a sanitizer build proves it) and
// never gives more commands than fit.
TEST(decode_hostile, random_damage_is_survived) {
    std::mt19937_64 random(20240601);
    for (const sample_request& r : sample_session()) {
        for (int round = 0; round < 300; ++round) {
            stream_builder b = r.builder;
            const auto stream = b.mutable_stream();
            for (int hits = 1 + static_cast<int>(random() % 3); hits > 0; --hits)
                stream[random() % stream.size()] = static_cast<std::byte>(random() % 4 ? random() : 0xff);
            const outcome o = walk(b);
            EXPECT_LE(o.ops, stream.size() / sizeof(vgpu_cmd));
            EXPECT_TRUE(o.status == decode_status::end || o.message != nullptr);
        }
    }
}

} // namespace
} // namespace kagemusha::codec
