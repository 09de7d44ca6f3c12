// SPDX-License-Identifier: GPL-2.0-or-later
// In the order of proto/abi/vgpu_protocol.h. What is written here are a command's numbers; the rest follows
// from its row. WRITE_RUNS, which is packed, is encoded by hand.
#include "codec/encode.hpp"

#include <algorithm>
#include <string>

#include "codec/cl_numbers.hpp"
#include "codec/commands/emit.hpp"

namespace kagemusha::codec {

namespace {

void append_words(std::vector<std::uint64_t>& words, const void* data, std::size_t bytes) {
    const std::size_t at = words.size();
    words.resize(at + (bytes + 7) / 8, 0);
    if (bytes != 0)
        std::memcpy(words.data() + at, data, bytes);
}

payload_source inlined(std::span<const std::byte> bytes) {
    return bytes.empty() ? payload_source{} : payload_source{bytes.size(), VGPU_PAYLOAD_INLINE, bytes};
}

void set(__u64 (&to)[3], const box& from) {
    std::copy_n(from.side, 3, to);
}

} // namespace

void argument_builder::header(std::uint32_t index, std::uint32_t kind, std::uint64_t bytes) {
    const vgpu_argument a{index, kind, bytes};
    append_words(words_, &a, sizeof(a));
    ++count_;
}

argument_builder& argument_builder::value(std::uint32_t index, std::span<const std::byte> bytes) {
    header(index, VGPU_ARGUMENT_BYTES, bytes.size());
    append_words(words_, bytes.data(), bytes.size());
    return *this;
}

argument_builder& argument_builder::object(std::uint32_t index, vgpu_argument_kind kind, std::uint64_t id) {
    header(index, kind, sizeof(id));
    words_.push_back(id);
    return *this;
}

argument_builder& argument_builder::local(std::uint32_t index, std::uint64_t bytes) {
    header(index, VGPU_ARGUMENT_LOCAL, bytes);
    return *this;
}

void stream_builder::append(const void* data, std::size_t bytes) {
    append_words(words_, data, bytes);
    const auto length = static_cast<std::uint32_t>((words_.size() - command_word_) * 8);
    std::memcpy(reinterpret_cast<std::byte*>(&words_[command_word_]) + offsetof(vgpu_cmd, bytes), &length,
                sizeof(length));
}

vgpu_payload_ref stream_builder::payload(bool writable, std::uint32_t region, std::uint64_t offset,
                                         std::uint64_t bytes) {
    return payload(writable, {kagemusha_segment{offset, bytes, region, 0}});
}

vgpu_payload_ref stream_builder::payload(bool writable, std::span<const kagemusha_segment> segments) {
    kagemusha_payload p{};
    p.first_segment = static_cast<std::uint32_t>(segments_.size());
    p.segment_count = static_cast<std::uint32_t>(segments.size());
    p.writable = writable;
    for (const kagemusha_segment& s : segments) {
        p.bytes += s.bytes;
        segments_.push_back(s);
    }
    payloads_.push_back(p);
    return {p.bytes, static_cast<std::uint32_t>(payloads_.size() - 1), 0};
}

template <class Row, class... View>
stream_builder& stream_builder::add(typename Row::wire c, const View&... view) {
    commands::emit<Row>(*this, c, view...);
    return *this;
}

template <class Row, class... View>
stream_builder& stream_builder::add_enqueued(typename Row::wire c, const enqueue_ref& e,
                                             const View&... view) {
    completion_count_ += e.event != 0;
    c.enqueue.queue = e.queue;
    c.enqueue.event = e.event;
    return add<Row>(c, id_list(e.waits), view...);
}

void stream_builder::append_command(vgpu_cmd& fixed, std::size_t fixed_bytes, std::span<const piece> pieces) {
    command_word_ = words_.size();
    append(&fixed, fixed_bytes);
    for (const piece& p : pieces)
        append(p.data, p.bytes);
}

// ---- calls

stream_builder& stream_builder::info(std::uint32_t subject, std::uint32_t name, std::uint64_t object,
                                     std::uint64_t index, vgpu_payload_ref result,
                                     std::span<const std::byte> input) {
    vgpu_cmd_info c{};
    c.subject = subject;
    c.name = name;
    c.object = object;
    c.index = index;
    return add<commands::info>(c, result, inlined(input));
}

stream_builder& stream_builder::create_context(std::uint64_t id) {
    vgpu_cmd_create_context c{};
    c.id = id;
    return add<commands::create_context>(c);
}

stream_builder& stream_builder::create_queue(std::uint64_t id, std::uint64_t context,
                                             std::uint64_t properties) {
    vgpu_cmd_create_queue c{};
    c.id = id;
    c.context = context;
    c.properties = properties;
    return add<commands::create_queue>(c);
}

stream_builder& stream_builder::create_buffer(std::uint64_t id, std::uint64_t context, std::uint64_t bytes,
                                              std::uint64_t flags, vgpu_payload_ref content) {
    return add_buffer(id, context, bytes, flags, content);
}

template <class Payload>
stream_builder& stream_builder::add_buffer(std::uint64_t id, std::uint64_t context, std::uint64_t bytes,
                                           std::uint64_t flags, const Payload& content) {
    vgpu_cmd_create_buffer c{};
    c.id = id;
    c.context = context;
    c.flags = flags;
    c.bytes = bytes;
    return add<commands::create_buffer>(c, content);
}

stream_builder& stream_builder::create_buffer_inline(std::uint64_t id, std::uint64_t context,
                                                     std::span<const std::byte> content) {
    return add_buffer(id, context, content.size(), cl_mem_read_write, inlined(content));
}

stream_builder& stream_builder::create_sub_buffer(std::uint64_t id, std::uint64_t buffer,
                                                  std::uint64_t origin, std::uint64_t bytes,
                                                  std::uint64_t flags) {
    vgpu_cmd_create_sub_buffer c{};
    c.id = id;
    c.buffer = buffer;
    c.flags = flags;
    c.origin = origin;
    c.bytes = bytes;
    return add<commands::create_sub_buffer>(c);
}

stream_builder& stream_builder::create_image(vgpu_cmd_create_image body) {
    return add<commands::create_image>(body, body.content);
}

stream_builder& stream_builder::create_image_2d(std::uint64_t id, std::uint64_t context, std::uint64_t width,
                                                std::uint64_t height) {
    vgpu_cmd_create_image c{};
    c.id = id;
    c.context = context;
    c.flags = cl_mem_read_write;
    c.channel_order = 0x10B5; // CL_RGBA
    c.channel_type = 0x10DA;  // CL_UNSIGNED_INT8
    c.image_type = cl_mem_object_image2d;
    c.width = width;
    c.height = height;
    c.content = no_payload;
    return create_image(c);
}

stream_builder& stream_builder::create_sampler(std::uint64_t id, std::uint64_t context) {
    vgpu_cmd_create_sampler c{};
    c.id = id;
    c.context = context;
    c.normalized = 1;
    c.addressing = cl_address_none;
    c.filter = cl_filter_nearest;
    return add<commands::create_sampler>(c);
}

stream_builder& stream_builder::create_program(std::uint64_t id, std::uint64_t context,
                                               std::string_view source) {
    return add_program(id, context, VGPU_PROGRAM_SOURCE, inlined(std::as_bytes(std::span(source))));
}

stream_builder& stream_builder::create_program(std::uint64_t id, std::uint64_t context,
                                               vgpu_program_kind kind, vgpu_payload_ref content) {
    return add_program(id, context, kind, content);
}

template <class Payload>
stream_builder& stream_builder::add_program(std::uint64_t id, std::uint64_t context, vgpu_program_kind kind,
                                            const Payload& content) {
    vgpu_cmd_create_program c{};
    c.id = id;
    c.context = context;
    c.kind = static_cast<std::uint32_t>(kind);
    return add<commands::create_program>(c, content);
}

stream_builder& stream_builder::build_program(std::uint64_t program, std::string_view options) {
    vgpu_cmd_build_program c{};
    c.program = program;
    return add<commands::build_program>(c, options);
}

stream_builder& stream_builder::compile_program(std::uint64_t program, std::string_view options,
                                                std::span<const std::uint64_t> headers,
                                                std::span<const std::string_view> names) {
    std::string joined;
    for (const std::string_view name : names)
        joined.append(name).push_back('\0');
    vgpu_cmd_compile_program c{};
    c.program = program;
    return add<commands::compile_program>(c, headers, options, std::string_view(joined));
}

stream_builder& stream_builder::link_program(std::uint64_t id, std::uint64_t context,
                                             std::span<const std::uint64_t> inputs,
                                             std::string_view options) {
    vgpu_cmd_link_program c{};
    c.id = id;
    c.context = context;
    return add<commands::link_program>(c, inputs, options);
}

stream_builder& stream_builder::create_kernel(std::uint64_t id, std::uint64_t program,
                                              std::string_view name) {
    vgpu_cmd_create_kernel c{};
    c.id = id;
    c.program = program;
    return add<commands::create_kernel>(c, name);
}

stream_builder& stream_builder::create_user_event(std::uint64_t id, std::uint64_t context) {
    vgpu_cmd_create_user_event c{};
    c.id = id;
    c.context = context;
    return add<commands::create_user_event>(c);
}

stream_builder& stream_builder::set_spec_constant(std::uint64_t program, std::uint32_t constant,
                                                  std::span<const std::byte> value) {
    vgpu_cmd_set_spec_constant c{};
    c.program = program;
    c.constant = constant;
    return add<commands::set_spec_constant>(c, value);
}

// ---- neither answered nor enqueued

stream_builder& stream_builder::set_user_event(std::uint64_t event, std::int32_t status) {
    vgpu_cmd_set_user_event c{};
    c.event = event;
    c.status = status;
    return add<commands::set_user_event>(c);
}

stream_builder& stream_builder::destroy(vgpu_object_kind kind, std::uint64_t id) {
    vgpu_cmd_destroy c{};
    c.kind = static_cast<std::uint32_t>(kind);
    c.id = id;
    return add<commands::destroy>(c);
}

stream_builder& stream_builder::flush(std::uint64_t queue) {
    vgpu_cmd_flush c{};
    c.queue = queue;
    return add<commands::flush>(c);
}

stream_builder& stream_builder::await(std::span<const std::uint64_t> events) {
    return add<commands::await>(vgpu_cmd_await{}, events);
}

stream_builder& stream_builder::take_built(std::uint32_t flags, vgpu_payload_ref data) {
    vgpu_cmd_built c{};
    c.flags = flags;
    c.data = data;
    return add<commands::take_built>(c, data);
}

stream_builder& stream_builder::store_built(vgpu_payload_ref data) {
    vgpu_cmd_built c{};
    c.data = data;
    return add<commands::store_built>(c, data);
}

// ---- enqueued

stream_builder& stream_builder::write_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                             std::span<const std::byte> inline_data) {
    return add_write(e, buffer, offset, inlined(inline_data));
}

stream_builder& stream_builder::write_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                             vgpu_payload_ref data) {
    return add_write(e, buffer, offset, data);
}

template <class Payload>
stream_builder& stream_builder::add_write(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                          const Payload& data) {
    vgpu_cmd_transfer_buffer c{};
    c.buffer = buffer;
    c.offset = offset;
    return add_enqueued<commands::write_buffer>(c, e, data);
}

stream_builder& stream_builder::read_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                            vgpu_payload_ref data) {
    vgpu_cmd_transfer_buffer c{};
    c.buffer = buffer;
    c.offset = offset;
    return add_enqueued<commands::read_buffer>(c, e, data);
}

stream_builder& stream_builder::transfer_rect(bool write, const enqueue_ref& e, std::uint64_t buffer,
                                              box origin, box region, std::uint64_t row_pitch,
                                              std::uint64_t slice_pitch, vgpu_payload_ref data) {
    vgpu_cmd_transfer_rect c{};
    c.buffer = buffer;
    set(c.buffer_origin, origin);
    set(c.region, region);
    c.buffer_row_pitch = row_pitch;
    c.buffer_slice_pitch = slice_pitch;
    c.host_row_pitch = region.side[0];
    c.host_slice_pitch = region.side[0] * region.side[1];
    return write ? add_enqueued<commands::write_buffer_rect>(c, e, data)
                 : add_enqueued<commands::read_buffer_rect>(c, e, data);
}

stream_builder& stream_builder::copy_buffer(const enqueue_ref& e, std::uint64_t source,
                                            std::uint64_t destination, std::uint64_t source_offset,
                                            std::uint64_t destination_offset, std::uint64_t bytes) {
    vgpu_cmd_copy_buffer c{};
    c.source = source;
    c.destination = destination;
    c.source_offset = source_offset;
    c.destination_offset = destination_offset;
    c.bytes = bytes;
    return add_enqueued<commands::copy_buffer>(c, e);
}

stream_builder& stream_builder::copy_rect(const enqueue_ref& e, std::uint64_t source,
                                          std::uint64_t destination, box source_origin,
                                          box destination_origin, box region, std::uint64_t row_pitch,
                                          std::uint64_t slice_pitch) {
    vgpu_cmd_copy_rect c{};
    c.source = source;
    c.destination = destination;
    set(c.source_origin, source_origin);
    set(c.destination_origin, destination_origin);
    set(c.region, region);
    c.source_row_pitch = c.destination_row_pitch = row_pitch;
    c.source_slice_pitch = c.destination_slice_pitch = slice_pitch;
    return add_enqueued<commands::copy_buffer_rect>(c, e);
}

stream_builder& stream_builder::fill_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                            std::uint64_t bytes, std::span<const std::byte> pattern) {
    vgpu_cmd_fill_buffer c{};
    c.buffer = buffer;
    c.offset = offset;
    c.bytes = bytes;
    c.pattern_bytes = static_cast<std::uint32_t>(pattern.size());
    std::copy_n(pattern.begin(), std::min(pattern.size(), sizeof(c.pattern)),
                reinterpret_cast<std::byte*>(c.pattern));
    return add_enqueued<commands::fill_buffer>(c, e);
}

stream_builder& stream_builder::transfer_image(bool write, const enqueue_ref& e, std::uint64_t image,
                                               box origin, box region, std::uint64_t row_pitch,
                                               std::uint64_t slice_pitch, vgpu_payload_ref data) {
    vgpu_cmd_transfer_image c{};
    c.image = image;
    set(c.origin, origin);
    set(c.region, region);
    c.row_pitch = row_pitch;
    c.slice_pitch = slice_pitch;
    return write ? add_enqueued<commands::write_image>(c, e, data)
                 : add_enqueued<commands::read_image>(c, e, data);
}

stream_builder& stream_builder::copy_image(const enqueue_ref& e, std::uint64_t source,
                                           std::uint64_t destination, box source_origin,
                                           box destination_origin, box region) {
    vgpu_cmd_copy_image c{};
    c.source = source;
    c.destination = destination;
    set(c.source_origin, source_origin);
    set(c.destination_origin, destination_origin);
    set(c.region, region);
    return add_enqueued<commands::copy_image>(c, e);
}

stream_builder& stream_builder::copy_image_buffer(bool to_buffer, const enqueue_ref& e, std::uint64_t image,
                                                  std::uint64_t buffer, box origin, box region,
                                                  std::uint64_t offset) {
    vgpu_cmd_copy_image_buffer c{};
    c.image = image;
    c.buffer = buffer;
    set(c.origin, origin);
    set(c.region, region);
    c.offset = offset;
    return to_buffer ? add_enqueued<commands::copy_image_to_buffer>(c, e)
                     : add_enqueued<commands::copy_buffer_to_image>(c, e);
}

stream_builder& stream_builder::fill_image(const enqueue_ref& e, std::uint64_t image, box origin,
                                           box region) {
    vgpu_cmd_fill_image c{};
    c.image = image;
    set(c.origin, origin);
    set(c.region, region);
    return add_enqueued<commands::fill_image>(c, e);
}

stream_builder& stream_builder::launch(const enqueue_ref& e, std::uint64_t kernel, const launch_size& size,
                                       const argument_builder& arguments) {
    vgpu_cmd_launch c{};
    c.kernel = kernel;
    c.work_dim = size.work_dim;
    c.flags = size.local[0] != 0 ? VGPU_LAUNCH_LOCAL_SIZE : 0;
    std::copy_n(size.offset, 3, c.offset);
    std::copy_n(size.global, 3, c.global);
    for (std::uint32_t d = 0; d < 3; ++d)
        c.local[d] = d < size.work_dim || size.local[0] == 0 ? size.local[d] : 1;
    return add_enqueued<commands::launch>(c, e, arguments.list());
}

stream_builder& stream_builder::marker(const enqueue_ref& e) {
    return add_enqueued<commands::marker>(vgpu_cmd_sync{}, e);
}

stream_builder& stream_builder::barrier(const enqueue_ref& e) {
    return add_enqueued<commands::barrier>(vgpu_cmd_sync{}, e);
}

stream_builder& stream_builder::migrate(const enqueue_ref& e, std::span<const std::uint64_t> objects,
                                        std::uint64_t flags) {
    vgpu_cmd_migrate c{};
    c.flags = flags;
    return add_enqueued<commands::migrate>(c, e, objects);
}

namespace {

void append_number(std::vector<std::byte>& to, std::uint64_t n) {
    for (; n >= 0x80; n >>= 7)
        to.push_back(static_cast<std::byte>(n | 0x80));
    to.push_back(static_cast<std::byte>(n));
}

} // namespace

stream_builder& stream_builder::write_runs(std::uint64_t queue, std::uint64_t buffer,
                                           std::span<const written_run> runs) {
    std::vector<std::byte> data, encoded;
    std::uint64_t end = 0;
    for (const written_run& run : runs) {
        append_number(encoded, (run.offset - end) << 2 | VGPU_RUN_NEW);
        append_number(encoded, run.data.size());
        data.insert(data.end(), run.data.begin(), run.data.end());
        end = run.offset + run.data.size();
    }
    return write_runs(queue, buffer, data, encoded);
}

stream_builder& stream_builder::write_runs(std::uint64_t queue, std::uint64_t buffer,
                                           std::span<const std::byte> data,
                                           std::span<const std::byte> encoded) {
    std::vector<std::byte> command(offsetof(vgpu_cmd_write_runs, body));
    append_number(command, queue);
    append_number(command, buffer);
    append_number(command, encoded.size());
    command.insert(command.end(), encoded.begin(), encoded.end());
    command.insert(command.end(), data.begin(), data.end());
    const std::uint16_t opcode = VGPU_CMD_WRITE_RUNS,
                        words = static_cast<std::uint16_t>((command.size() + 7) / 8);
    std::memcpy(command.data() + offsetof(vgpu_cmd_write_runs, opcode), &opcode, sizeof(opcode));
    std::memcpy(command.data() + offsetof(vgpu_cmd_write_runs, words), &words, sizeof(words));
    command_word_ = words_.size();
    append_words(words_, command.data(), command.size());
    return *this;
}

kagemusha_request stream_builder::request(std::uint32_t file, std::uint64_t token) const {
    kagemusha_request r{};
    r.token = token;
    r.file = file;
    r.completion_count = completion_count_;
    r.stream = words_.data();
    r.stream_bytes = static_cast<std::uint32_t>(stream().size());
    r.payload_count = static_cast<std::uint32_t>(payloads_.size());
    r.payloads = payloads_.data();
    r.segments = segments_.data();
    r.segment_count = static_cast<std::uint32_t>(segments_.size());
    return r;
}

void stream_builder::clear() {
    words_.clear();
    payloads_.clear();
    segments_.clear();
    command_word_ = 0;
    completion_count_ = 0;
}

} // namespace kagemusha::codec
