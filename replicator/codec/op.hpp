// SPDX-License-Identifier: GPL-2.0-or-later
// op: one decoded command. Decoding checks everything that can be checked without knowing any object:
// lengths, counts, flags, pads, enumerations, overflow of offset + size. Whether ids exist and ranges fit
// objects is checked by core (in QEMU) and again by the executor's handle maps.
//
// An op is a view: it points into the stream (a private, 8-byte aligned copy) and is valid as long as that
// copy. The fixed part of a command is used as the wire format has it (proto/abi/vgpu_protocol.h), so that no
// field is written down twice; what is variable is given as spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "codec/runs.hpp"
#include "proto/abi/vgpu_protocol.h"
#include "proto/replication/built_commands.h"

namespace kagemusha::codec {

// Ids that the guest chose. Different types for different kinds come from the object tables
// (core/object_table.hpp, gpu/handle_map.hpp), because the wire format has one number space per file.
using guest_id = std::uint64_t;
using id_list = std::span<const guest_id>;

// Data of a transfer: inline bytes, or an entry of the request's payload table, or nothing.
struct payload_source {
    std::uint64_t bytes = 0;
    std::uint32_t index = VGPU_PAYLOAD_NONE;      // into the payload table, or VGPU_PAYLOAD_NONE / _INLINE
    std::span<const std::byte> inline_bytes = {}; // when index is VGPU_PAYLOAD_INLINE
};

struct launch_argument {
    std::uint32_t index;
    vgpu_argument_kind kind;
    std::uint64_t bytes;              // LOCAL: the size of the local memory
    std::span<const std::byte> value; // BYTES
    guest_id object;                  // MEMORY (0: null pointer), SAMPLER
};

// The arguments of a launch, decoded on the fly; the decoder has already walked them once, so iteration can't
// fail.
class argument_list {
public:
    argument_list() = default;
    argument_list(std::span<const std::byte> bytes, std::uint32_t count) : bytes_(bytes), count_(count) {}
    std::uint32_t size() const { return count_; }
    std::span<const std::byte> bytes() const { return bytes_; } // as the command has them
    template <class F>
    void for_each(F&& f) const; // f(const launch_argument&)

private:
    std::span<const std::byte> bytes_;
    std::uint32_t count_ = 0;
};

// A WRITE_RUNS is packed; this is what it says, in the shape of the other commands.
struct write_runs_fields {
    vgpu_cmd cmd;
    vgpu_enqueue enqueue; // no event, no wait list
    guest_id buffer;
};
template <class T>
struct in_place { // used like a pointer
    T value{};
    const T* operator->() const { return &value; }
};

// clang-format off
struct op_info               { const vgpu_cmd_info* c; payload_source result; payload_source input; };
struct op_create_context     { const vgpu_cmd_create_context* c; };
struct op_create_queue       { const vgpu_cmd_create_queue* c; };
struct op_create_buffer      { const vgpu_cmd_create_buffer* c; payload_source content; };
struct op_create_sub_buffer  { const vgpu_cmd_create_sub_buffer* c; };
struct op_create_arena       { const vgpu_cmd_create_arena* c; };
struct op_create_variable    { const vgpu_cmd_create_variable* c; std::string_view name; };
struct op_find_texture       { const vgpu_cmd_create_texture* c; payload_source result; };
struct op_create_texture     { const vgpu_cmd_create_texture* c; };
struct op_create_image       { const vgpu_cmd_create_image* c; payload_source content; };
struct op_create_sampler     { const vgpu_cmd_create_sampler* c; };
struct op_create_program     { const vgpu_cmd_create_program* c; payload_source content; };
struct op_build_program      { const vgpu_cmd_build_program* c; std::string_view options; };
struct op_compile_program    { const vgpu_cmd_compile_program* c; id_list headers; std::string_view options; std::string_view names; }; // names: header_count of them, each ended by 0
struct op_link_program       { const vgpu_cmd_link_program* c; id_list inputs; std::string_view options; };
struct op_create_kernel      { const vgpu_cmd_create_kernel* c; std::string_view name; };
struct op_create_user_event  { const vgpu_cmd_create_user_event* c; };
struct op_set_user_event     { const vgpu_cmd_set_user_event* c; };
struct op_destroy            { const vgpu_cmd_destroy* c; };
struct op_flush              { const vgpu_cmd_flush* c; };
struct op_await              { const vgpu_cmd_await* c; id_list events; };
struct op_built              { const vgpu_cmd_built* c; payload_source data; bool take() const { return c->cmd.opcode == VGPU_CMD_TAKE_BUILT; } };
struct op_suggested_group_size { const vgpu_cmd_suggested_group_size* c; payload_source result; argument_list arguments; };
struct op_set_spec_constant  { const vgpu_cmd_set_spec_constant* c; std::span<const std::byte> value; };

struct op_transfer_buffer    { const vgpu_cmd_transfer_buffer* c; id_list waits; payload_source data; bool write() const { return c->cmd.opcode == VGPU_CMD_WRITE_BUFFER; } };
struct op_transfer_rect      { const vgpu_cmd_transfer_rect* c; id_list waits; payload_source data; bool write() const { return c->cmd.opcode == VGPU_CMD_WRITE_BUFFER_RECT; } };
struct op_copy_buffer        { const vgpu_cmd_copy_buffer* c; id_list waits; };
struct op_copy_rect          { const vgpu_cmd_copy_rect* c; id_list waits; };
struct op_fill_buffer        { const vgpu_cmd_fill_buffer* c; id_list waits; };
struct op_transfer_image     { const vgpu_cmd_transfer_image* c; id_list waits; payload_source data; bool write() const { return c->cmd.opcode == VGPU_CMD_WRITE_IMAGE; } };
struct op_copy_image         { const vgpu_cmd_copy_image* c; id_list waits; };
struct op_copy_image_buffer  { const vgpu_cmd_copy_image_buffer* c; id_list waits; bool to_buffer() const { return c->cmd.opcode == VGPU_CMD_COPY_IMAGE_TO_BUFFER; } };
struct op_fill_image         { const vgpu_cmd_fill_image* c; id_list waits; };
struct op_launch             { const vgpu_cmd_launch* c; id_list waits; argument_list arguments; };
struct op_sync               { const vgpu_cmd_sync* c; id_list waits; bool barrier() const { return c->cmd.opcode == VGPU_CMD_BARRIER; } };
struct op_migrate            { const vgpu_cmd_migrate* c; id_list waits; id_list objects; };
struct op_write_runs         { in_place<write_runs_fields> c; std::span<const std::byte> bytes; run_list runs; std::uint64_t end; static constexpr id_list waits{}; }; // end: behind the last run
// clang-format on

using op =
    std::variant<op_info, op_create_context, op_create_queue, op_create_buffer, op_create_sub_buffer,
                 op_create_image, op_create_sampler, op_create_program, op_build_program, op_compile_program,
                 op_link_program, op_create_kernel, op_create_user_event, op_set_user_event, op_destroy,
                 op_flush, op_await, op_built, op_set_spec_constant, op_suggested_group_size, op_create_arena,
                 op_create_variable, op_find_texture, op_create_texture, op_transfer_buffer, op_transfer_rect,
                 op_copy_buffer, op_copy_rect, op_fill_buffer, op_transfer_image, op_copy_image,
                 op_copy_image_buffer, op_fill_image, op_launch, op_sync, op_migrate, op_write_runs>;

// The enqueue part of an op, or nullptr for calls and for what answers by
// nothing.
const vgpu_enqueue* enqueue_of(const op& o);
id_list waits_of(const op& o); // empty for ops without a wait list
const vgpu_cmd& header_of(const op& o);
// The length of the command that begins with these 8 bytes, whatever it is worth.
inline std::uint32_t command_bytes(const vgpu_cmd& header) {
    // WRITE_RUNS has its length where the others have flags
    static_assert(offsetof(vgpu_cmd, flags) == offsetof(vgpu_cmd_write_runs, words));
    return header.opcode == VGPU_CMD_WRITE_RUNS ? std::uint32_t{header.flags} * 8 : header.bytes;
}
// The queue of an enqueued command that was decoded before without an error.
guest_id queue_of(const vgpu_cmd& header);
// Whether the command answers in vgpu_response.result (vgpu_protocol.h, "Calls").
bool is_call(std::uint16_t opcode);

template <class F>
void argument_list::for_each(F&& f) const {
    std::size_t at = 0;
    for (std::uint32_t i = 0; i < count_; ++i) {
        const auto* a = reinterpret_cast<const vgpu_argument*>(bytes_.data() + at);
        at += sizeof(vgpu_argument);
        launch_argument out{a->index, static_cast<vgpu_argument_kind>(a->kind), a->bytes, {}, 0};
        if (a->kind == VGPU_ARGUMENT_MEMORY || a->kind == VGPU_ARGUMENT_SAMPLER) {
            out.object = *reinterpret_cast<const guest_id*>(bytes_.data() + at);
            at += sizeof(guest_id);
        } else if (a->kind == VGPU_ARGUMENT_BYTES) {
            out.value = bytes_.subspan(at, a->bytes);
            at += (a->bytes + 7) & ~std::uint64_t{7};
        }
        f(out);
    }
}

} // namespace kagemusha::codec
