// SPDX-License-Identifier: GPL-2.0-or-later
// encode: builds requests the way a guest's driver does, for the sync agent, tests, fuzz corpora and
// benchmarks. Each command comes from its row (commands/emit.hpp), as in the guest's driver. It writes what it
// is told, also nonsense, so that hostile input can be built from valid input.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "codec/op.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::codec {

struct piece; // commands/emit.hpp

inline constexpr vgpu_payload_ref no_payload{0, VGPU_PAYLOAD_NONE, 0};

// Queue, event and wait list of an enqueued command.
struct enqueue_ref {
    std::uint64_t queue = 0;
    std::uint64_t event = 0; // 0: none
    std::vector<std::uint64_t> waits = {};
};

struct box {
    std::uint64_t side[3];
};

struct launch_size {
    std::uint32_t work_dim = 1;
    std::uint64_t global[3] = {1, 1, 1};
    std::uint64_t local[3] = {0, 0, 0}; // 0: the GPU chooses
    std::uint64_t offset[3] = {0, 0, 0};
};

// The argument bytes of a launch.
class argument_builder {
public:
    argument_builder& value(std::uint32_t index, std::span<const std::byte> bytes);
    template <class T>
    argument_builder& scalar(std::uint32_t index, const T& v) {
        return value(index, std::as_bytes(std::span(&v, 1)));
    }
    argument_builder& memory(std::uint32_t index, std::uint64_t id) {
        return object(index, VGPU_ARGUMENT_MEMORY, id);
    }
    argument_builder& sampler(std::uint32_t index, std::uint64_t id) {
        return object(index, VGPU_ARGUMENT_SAMPLER, id);
    }
    argument_builder& local(std::uint32_t index, std::uint64_t bytes);

    std::uint32_t count() const { return count_; }
    std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)); }
    argument_list list() const { return {bytes(), count_}; } // valid until the builder changes

private:
    argument_builder& object(std::uint32_t index, vgpu_argument_kind kind, std::uint64_t id);
    void header(std::uint32_t index, std::uint32_t kind, std::uint64_t bytes);

    std::vector<std::uint64_t> words_;
    std::uint32_t count_ = 0;
};

// A run of a WRITE_RUNS: behind the one before it.
struct written_run {
    std::uint64_t offset;
    std::vector<std::byte> data;
};

class stream_builder {
public:
    // ---- building blocks ----
    // For commands::emit<Row>(): a whole command.
    void append_command(vgpu_cmd& fixed, std::size_t fixed_bytes, std::span<const piece> pieces);
    // By hand, for what no row would make: appends the fixed structure with its header filled in; what follows is appended to the same command.
    template <class Command>
    stream_builder& begin(std::uint16_t opcode, Command body) {
        static_assert(sizeof(Command) % 8 == 0);
        body.cmd.opcode = opcode;
        body.cmd.flags = 0;
        body.cmd.bytes = 0;
        command_word_ = words_.size();
        append(&body, sizeof(body));
        return *this;
    }
    stream_builder& ids(std::span<const std::uint64_t> list) { return bytes(std::as_bytes(list)); }
    stream_builder& text(std::string_view s) { return bytes(std::as_bytes(std::span(s))); }
    stream_builder& bytes(std::span<const std::byte> b) {
        append(b.data(), b.size());
        return *this;
    }

    // ---- payloads ----
    // Adds a payload table entry; each (offset, bytes) is one segment of `region`.
    vgpu_payload_ref payload(bool writable, std::uint32_t region, std::uint64_t offset, std::uint64_t bytes);
    vgpu_payload_ref payload(bool writable, std::span<const kagemusha_segment> segments);
    vgpu_payload_ref payload(bool writable, std::initializer_list<kagemusha_segment> segments) {
        return payload(writable, std::span(segments.begin(), segments.size()));
    }

    // ---- calls ----
    stream_builder& info(std::uint32_t subject, std::uint32_t name, std::uint64_t object, std::uint64_t index,
                         vgpu_payload_ref result, std::span<const std::byte> input = {});
    stream_builder& create_context(std::uint64_t id);
    stream_builder& create_queue(std::uint64_t id, std::uint64_t context, std::uint64_t properties = 0);
    stream_builder& create_buffer(std::uint64_t id, std::uint64_t context, std::uint64_t bytes,
                                  std::uint64_t flags = 1, vgpu_payload_ref content = no_payload);
    stream_builder& create_buffer_inline(std::uint64_t id, std::uint64_t context,
                                         std::span<const std::byte> content);
    stream_builder& create_sub_buffer(std::uint64_t id, std::uint64_t buffer, std::uint64_t origin,
                                      std::uint64_t bytes, std::uint64_t flags = 0);
    stream_builder& create_image(vgpu_cmd_create_image body); // header filled in
    stream_builder& create_image_2d(std::uint64_t id, std::uint64_t context, std::uint64_t width,
                                    std::uint64_t height);
    stream_builder& create_sampler(std::uint64_t id, std::uint64_t context);
    stream_builder& create_program(std::uint64_t id, std::uint64_t context, std::string_view source);
    stream_builder& create_program(std::uint64_t id, std::uint64_t context, vgpu_program_kind kind,
                                   vgpu_payload_ref content);
    stream_builder& build_program(std::uint64_t program, std::string_view options = {});
    stream_builder& compile_program(std::uint64_t program, std::string_view options,
                                    std::span<const std::uint64_t> headers,
                                    std::span<const std::string_view> names);
    stream_builder& link_program(std::uint64_t id, std::uint64_t context,
                                 std::span<const std::uint64_t> inputs, std::string_view options = {});
    stream_builder& create_kernel(std::uint64_t id, std::uint64_t program, std::string_view name);
    stream_builder& create_user_event(std::uint64_t id, std::uint64_t context);
    stream_builder& set_spec_constant(std::uint64_t program, std::uint32_t constant,
                                      std::span<const std::byte> value);

    // ---- neither answered nor enqueued ----
    stream_builder& set_user_event(std::uint64_t event, std::int32_t status);
    stream_builder& destroy(vgpu_object_kind kind, std::uint64_t id);
    stream_builder& flush(std::uint64_t queue);
    stream_builder& take_built(std::uint32_t flags, vgpu_payload_ref data);
    stream_builder& store_built(vgpu_payload_ref data);
    stream_builder& await(std::span<const std::uint64_t> events); // at most VGPU_MAX_WAIT_COUNT

    // ---- enqueued ----
    stream_builder& write_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                 std::span<const std::byte> inline_data);
    stream_builder& write_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                 vgpu_payload_ref data);
    stream_builder& read_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                vgpu_payload_ref data);
    // Both rectangles with the same origin and tight host memory.
    stream_builder& transfer_rect(bool write, const enqueue_ref& e, std::uint64_t buffer, box origin,
                                  box region, std::uint64_t row_pitch, std::uint64_t slice_pitch,
                                  vgpu_payload_ref data);
    stream_builder& copy_buffer(const enqueue_ref& e, std::uint64_t source, std::uint64_t destination,
                                std::uint64_t source_offset, std::uint64_t destination_offset,
                                std::uint64_t bytes);
    stream_builder& copy_rect(const enqueue_ref& e, std::uint64_t source, std::uint64_t destination,
                              box source_origin, box destination_origin, box region, std::uint64_t row_pitch,
                              std::uint64_t slice_pitch);
    stream_builder& fill_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                std::uint64_t bytes, std::span<const std::byte> pattern);
    stream_builder& transfer_image(bool write, const enqueue_ref& e, std::uint64_t image, box origin,
                                   box region, std::uint64_t row_pitch, std::uint64_t slice_pitch,
                                   vgpu_payload_ref data);
    stream_builder& copy_image(const enqueue_ref& e, std::uint64_t source, std::uint64_t destination,
                               box source_origin, box destination_origin, box region);
    stream_builder& copy_image_buffer(bool to_buffer, const enqueue_ref& e, std::uint64_t image,
                                      std::uint64_t buffer, box origin, box region, std::uint64_t offset);
    stream_builder& fill_image(const enqueue_ref& e, std::uint64_t image, box origin, box region);
    stream_builder& launch(const enqueue_ref& e, std::uint64_t kernel, const launch_size& size,
                           const argument_builder& arguments = {});
    stream_builder& marker(const enqueue_ref& e);
    stream_builder& barrier(const enqueue_ref& e);
    stream_builder& migrate(const enqueue_ref& e, std::span<const std::uint64_t> objects,
                            std::uint64_t flags = 0);
    // The runs one by one, or as the caller encoded them.
    stream_builder& write_runs(std::uint64_t queue, std::uint64_t buffer, std::span<const written_run> runs);
    stream_builder& write_runs(std::uint64_t queue, std::uint64_t buffer, std::span<const std::byte> data,
                               std::span<const std::byte> encoded);

    // ---- results ----
    std::span<const std::byte> stream() const { return std::as_bytes(std::span(words_)); }
    std::span<std::byte> mutable_stream() { return std::as_writable_bytes(std::span(words_)); }
    std::span<const kagemusha_payload> payloads() const { return payloads_; }
    std::vector<kagemusha_payload>& mutable_payloads() { return payloads_; }
    std::span<const kagemusha_segment> segments() const { return segments_; }
    std::uint32_t completion_count() const { return completion_count_; }
    // A request over this builder's memory, valid until the builder changes.
    kagemusha_request request(std::uint32_t file, std::uint64_t token) const;
    void clear();

private:
    template <class Row, class... View>
    stream_builder& add(typename Row::wire c, const View&... view);
    // The same for an enqueued command: sets its queue and event, and gives the wait list as the first view.
    template <class Row, class... View>
    stream_builder& add_enqueued(typename Row::wire c, const enqueue_ref& e, const View&... view);
    // `content`, `data`: a payload_source, or a reference as it is.
    template <class Payload>
    stream_builder& add_buffer(std::uint64_t id, std::uint64_t context, std::uint64_t bytes,
                               std::uint64_t flags, const Payload& content);
    template <class Payload>
    stream_builder& add_program(std::uint64_t id, std::uint64_t context, vgpu_program_kind kind,
                                const Payload& content);
    template <class Payload>
    stream_builder& add_write(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                              const Payload& data);
    void append(const void* data, std::size_t bytes); // pads with 0 and corrects the command's length

    std::vector<std::uint64_t> words_; // 64-bit words, so that the stream is aligned
    std::vector<kagemusha_payload> payloads_;
    std::vector<kagemusha_segment> segments_;
    std::size_t command_word_ = 0;
    std::uint32_t completion_count_ = 0;
};

} // namespace kagemusha::codec
