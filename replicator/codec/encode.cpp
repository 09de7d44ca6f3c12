// SPDX-License-Identifier: GPL-2.0-or-later
// The encoder for tests, in the order of proto/abi/vgpu_protocol.h.
#include "codec/encode.hpp"

#include <algorithm>

#include "codec/cl_numbers.hpp"

namespace kagemusha::codec {

namespace {

void append_words(std::vector<std::uint64_t>& words, const void* data, std::size_t bytes) {
    const std::size_t at = words.size();
    words.resize(at + (bytes + 7) / 8, 0);
    if (bytes != 0) {
        std::memcpy(words.data() + at, data, bytes);
    }
}

vgpu_payload_ref inline_ref(std::size_t bytes) {
    return bytes == 0 ? no_payload : vgpu_payload_ref{bytes, VGPU_PAYLOAD_INLINE, 0};
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

vgpu_enqueue stream_builder::enqueue(const enqueue_ref& e) {
    completion_count_ += e.event != 0;
    return {e.queue, e.event, static_cast<std::uint32_t>(e.waits.size()), 0};
}

stream_builder& stream_builder::info(std::uint32_t subject, std::uint32_t name, std::uint64_t object,
                                     std::uint64_t index, vgpu_payload_ref result,
                                     std::span<const std::byte> input) {
    return begin(VGPU_CMD_INFO,
                 vgpu_cmd_info{{}, subject, name, object, index, result, inline_ref(input.size())})
        .bytes(input);
}

stream_builder& stream_builder::create_context(std::uint64_t id) {
    return begin(VGPU_CMD_CREATE_CONTEXT, vgpu_cmd_create_context{{}, id, 0});
}

stream_builder& stream_builder::create_queue(std::uint64_t id, std::uint64_t context,
                                             std::uint64_t properties) {
    return begin(VGPU_CMD_CREATE_QUEUE, vgpu_cmd_create_queue{{}, id, context, properties, 0, 0});
}

stream_builder& stream_builder::create_buffer(std::uint64_t id, std::uint64_t context, std::uint64_t bytes,
                                              std::uint64_t flags, vgpu_payload_ref content) {
    return begin(VGPU_CMD_CREATE_BUFFER, vgpu_cmd_create_buffer{{}, id, context, flags, bytes, content});
}

stream_builder& stream_builder::create_buffer_inline(std::uint64_t id, std::uint64_t context,
                                                     std::span<const std::byte> content) {
    return create_buffer(id, context, content.size(), cl_mem_read_write, inline_ref(content.size()))
        .bytes(content);
}

stream_builder& stream_builder::create_sub_buffer(std::uint64_t id, std::uint64_t buffer,
                                                  std::uint64_t origin, std::uint64_t bytes,
                                                  std::uint64_t flags) {
    return begin(VGPU_CMD_CREATE_SUB_BUFFER,
                 vgpu_cmd_create_sub_buffer{{}, id, buffer, flags, origin, bytes});
}

stream_builder& stream_builder::create_image(vgpu_cmd_create_image body) {
    return begin(VGPU_CMD_CREATE_IMAGE, body);
}

stream_builder& stream_builder::create_image_2d(std::uint64_t id, std::uint64_t context, std::uint64_t width,
                                                std::uint64_t height) {
    vgpu_cmd_create_image body{};
    body.id = id;
    body.context = context;
    body.flags = cl_mem_read_write;
    body.channel_order = 0x10B5; // CL_RGBA
    body.channel_type = 0x10DA;  // CL_UNSIGNED_INT8
    body.image_type = cl_mem_object_image2d;
    body.width = width;
    body.height = height;
    body.content = no_payload;
    return create_image(body);
}

stream_builder& stream_builder::create_sampler(std::uint64_t id, std::uint64_t context) {
    return begin(VGPU_CMD_CREATE_SAMPLER,
                 vgpu_cmd_create_sampler{{}, id, context, 1, cl_address_none, cl_filter_nearest, 0});
}

stream_builder& stream_builder::create_program(std::uint64_t id, std::uint64_t context,
                                               std::string_view source) {
    return create_program(id, context, VGPU_PROGRAM_SOURCE, inline_ref(source.size())).text(source);
}

stream_builder& stream_builder::create_program(std::uint64_t id, std::uint64_t context,
                                               vgpu_program_kind kind, vgpu_payload_ref content) {
    return begin(VGPU_CMD_CREATE_PROGRAM,
                 vgpu_cmd_create_program{{}, id, context, static_cast<std::uint32_t>(kind), 0, content});
}

stream_builder& stream_builder::build_program(std::uint64_t program, std::string_view options) {
    return begin(VGPU_CMD_BUILD_PROGRAM,
                 vgpu_cmd_build_program{{}, program, static_cast<std::uint32_t>(options.size()), 0})
        .text(options);
}

stream_builder& stream_builder::compile_program(std::uint64_t program, std::string_view options,
                                                std::span<const std::uint64_t> headers,
                                                std::span<const std::string_view> names) {
    std::vector<std::byte> joined;
    for (const std::string_view name : names) {
        const auto raw = std::as_bytes(std::span(name));
        joined.insert(joined.end(), raw.begin(), raw.end());
        joined.push_back(std::byte{0});
    }
    return begin(VGPU_CMD_COMPILE_PROGRAM,
                 vgpu_cmd_compile_program{{},
                                          program,
                                          static_cast<std::uint32_t>(options.size()),
                                          static_cast<std::uint32_t>(headers.size()),
                                          static_cast<std::uint32_t>(joined.size()),
                                          0})
        .ids(headers)
        .text(options)
        .bytes(joined);
}

stream_builder& stream_builder::link_program(std::uint64_t id, std::uint64_t context,
                                             std::span<const std::uint64_t> inputs,
                                             std::string_view options) {
    return begin(VGPU_CMD_LINK_PROGRAM, vgpu_cmd_link_program{{},
                                                              id,
                                                              context,
                                                              static_cast<std::uint32_t>(options.size()),
                                                              static_cast<std::uint32_t>(inputs.size())})
        .ids(inputs)
        .text(options);
}

stream_builder& stream_builder::create_kernel(std::uint64_t id, std::uint64_t program,
                                              std::string_view name) {
    return begin(VGPU_CMD_CREATE_KERNEL,
                 vgpu_cmd_create_kernel{{}, id, program, static_cast<std::uint32_t>(name.size()), 0})
        .text(name);
}

stream_builder& stream_builder::create_user_event(std::uint64_t id, std::uint64_t context) {
    return begin(VGPU_CMD_CREATE_USER_EVENT, vgpu_cmd_create_user_event{{}, id, context});
}

stream_builder& stream_builder::set_spec_constant(std::uint64_t program, std::uint32_t constant,
                                                  std::span<const std::byte> value) {
    return begin(VGPU_CMD_SET_SPEC_CONSTANT,
                 vgpu_cmd_set_spec_constant{{}, program, constant, static_cast<std::uint32_t>(value.size())})
        .bytes(value);
}

stream_builder& stream_builder::set_user_event(std::uint64_t event, std::int32_t status) {
    return begin(VGPU_CMD_SET_USER_EVENT, vgpu_cmd_set_user_event{{}, event, status, 0});
}

stream_builder& stream_builder::destroy(vgpu_object_kind kind, std::uint64_t id) {
    return begin(VGPU_CMD_DESTROY, vgpu_cmd_destroy{{}, static_cast<std::uint32_t>(kind), 0, id});
}

stream_builder& stream_builder::flush(std::uint64_t queue) {
    return begin(VGPU_CMD_FLUSH, vgpu_cmd_flush{{}, queue});
}

stream_builder& stream_builder::await(std::span<const std::uint64_t> events) {
    return begin(VGPU_CMD_AWAIT, vgpu_cmd_await{{}, static_cast<std::uint32_t>(events.size()), 0})
        .bytes(std::as_bytes(events));
}

stream_builder& stream_builder::write_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                             std::span<const std::byte> inline_data) {
    return write_buffer(e, buffer, offset, inline_ref(inline_data.size())).bytes(inline_data);
}

stream_builder& stream_builder::write_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                             vgpu_payload_ref data) {
    return begin(VGPU_CMD_WRITE_BUFFER, vgpu_cmd_transfer_buffer{{}, enqueue(e), buffer, offset, data})
        .ids(e.waits);
}

stream_builder& stream_builder::read_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                            vgpu_payload_ref data) {
    return begin(VGPU_CMD_READ_BUFFER, vgpu_cmd_transfer_buffer{{}, enqueue(e), buffer, offset, data})
        .ids(e.waits);
}

stream_builder& stream_builder::transfer_rect(bool write, const enqueue_ref& e, std::uint64_t buffer,
                                              box origin, box region, std::uint64_t row_pitch,
                                              std::uint64_t slice_pitch, vgpu_payload_ref data) {
    vgpu_cmd_transfer_rect body{};
    body.enqueue = enqueue(e);
    body.buffer = buffer;
    set(body.buffer_origin, origin);
    set(body.region, region);
    body.buffer_row_pitch = row_pitch;
    body.buffer_slice_pitch = slice_pitch;
    body.host_row_pitch = region.side[0];
    body.host_slice_pitch = region.side[0] * region.side[1];
    body.data = data;
    return begin(write ? VGPU_CMD_WRITE_BUFFER_RECT : VGPU_CMD_READ_BUFFER_RECT, body).ids(e.waits);
}

stream_builder& stream_builder::copy_buffer(const enqueue_ref& e, std::uint64_t source,
                                            std::uint64_t destination, std::uint64_t source_offset,
                                            std::uint64_t destination_offset, std::uint64_t bytes) {
    return begin(VGPU_CMD_COPY_BUFFER,
                 vgpu_cmd_copy_buffer{
                     {}, enqueue(e), source, destination, source_offset, destination_offset, bytes})
        .ids(e.waits);
}

stream_builder& stream_builder::copy_rect(const enqueue_ref& e, std::uint64_t source,
                                          std::uint64_t destination, box source_origin,
                                          box destination_origin, box region, std::uint64_t row_pitch,
                                          std::uint64_t slice_pitch) {
    vgpu_cmd_copy_rect body{};
    body.enqueue = enqueue(e);
    body.source = source;
    body.destination = destination;
    set(body.source_origin, source_origin);
    set(body.destination_origin, destination_origin);
    set(body.region, region);
    body.source_row_pitch = body.destination_row_pitch = row_pitch;
    body.source_slice_pitch = body.destination_slice_pitch = slice_pitch;
    return begin(VGPU_CMD_COPY_BUFFER_RECT, body).ids(e.waits);
}

stream_builder& stream_builder::fill_buffer(const enqueue_ref& e, std::uint64_t buffer, std::uint64_t offset,
                                            std::uint64_t bytes, std::span<const std::byte> pattern) {
    vgpu_cmd_fill_buffer body{};
    body.enqueue = enqueue(e);
    body.buffer = buffer;
    body.offset = offset;
    body.bytes = bytes;
    body.pattern_bytes = static_cast<std::uint32_t>(pattern.size());
    std::copy_n(pattern.begin(), std::min(pattern.size(), sizeof(body.pattern)),
                reinterpret_cast<std::byte*>(body.pattern));
    return begin(VGPU_CMD_FILL_BUFFER, body).ids(e.waits);
}

stream_builder& stream_builder::transfer_image(bool write, const enqueue_ref& e, std::uint64_t image,
                                               box origin, box region, std::uint64_t row_pitch,
                                               std::uint64_t slice_pitch, vgpu_payload_ref data) {
    vgpu_cmd_transfer_image body{};
    body.enqueue = enqueue(e);
    body.image = image;
    set(body.origin, origin);
    set(body.region, region);
    body.row_pitch = row_pitch;
    body.slice_pitch = slice_pitch;
    body.data = data;
    return begin(write ? VGPU_CMD_WRITE_IMAGE : VGPU_CMD_READ_IMAGE, body).ids(e.waits);
}

stream_builder& stream_builder::copy_image(const enqueue_ref& e, std::uint64_t source,
                                           std::uint64_t destination, box source_origin,
                                           box destination_origin, box region) {
    vgpu_cmd_copy_image body{};
    body.enqueue = enqueue(e);
    body.source = source;
    body.destination = destination;
    set(body.source_origin, source_origin);
    set(body.destination_origin, destination_origin);
    set(body.region, region);
    return begin(VGPU_CMD_COPY_IMAGE, body).ids(e.waits);
}

stream_builder& stream_builder::copy_image_buffer(bool to_buffer, const enqueue_ref& e, std::uint64_t image,
                                                  std::uint64_t buffer, box origin, box region,
                                                  std::uint64_t offset) {
    vgpu_cmd_copy_image_buffer body{};
    body.enqueue = enqueue(e);
    body.image = image;
    body.buffer = buffer;
    set(body.origin, origin);
    set(body.region, region);
    body.offset = offset;
    return begin(to_buffer ? VGPU_CMD_COPY_IMAGE_TO_BUFFER : VGPU_CMD_COPY_BUFFER_TO_IMAGE, body)
        .ids(e.waits);
}

stream_builder& stream_builder::fill_image(const enqueue_ref& e, std::uint64_t image, box origin,
                                           box region) {
    vgpu_cmd_fill_image body{};
    body.enqueue = enqueue(e);
    body.image = image;
    set(body.origin, origin);
    set(body.region, region);
    return begin(VGPU_CMD_FILL_IMAGE, body).ids(e.waits);
}

stream_builder& stream_builder::launch(const enqueue_ref& e, std::uint64_t kernel, const launch_size& size,
                                       const argument_builder& arguments) {
    vgpu_cmd_launch body{};
    body.enqueue = enqueue(e);
    body.kernel = kernel;
    body.work_dim = size.work_dim;
    body.flags = size.local[0] != 0 ? VGPU_LAUNCH_LOCAL_SIZE : 0;
    std::copy_n(size.offset, 3, body.offset);
    std::copy_n(size.global, 3, body.global);
    for (std::uint32_t d = 0; d < 3; ++d) {
        body.local[d] = d < size.work_dim || size.local[0] == 0 ? size.local[d] : 1;
    }
    body.argument_count = arguments.count();
    body.argument_bytes = static_cast<std::uint32_t>(arguments.bytes().size());
    return begin(VGPU_CMD_LAUNCH, body).ids(e.waits).bytes(arguments.bytes());
}

stream_builder& stream_builder::sync(std::uint16_t opcode, const enqueue_ref& e) {
    return begin(opcode, vgpu_cmd_sync{{}, enqueue(e)}).ids(e.waits);
}

stream_builder& stream_builder::migrate(const enqueue_ref& e, std::span<const std::uint64_t> objects,
                                        std::uint64_t flags) {
    return begin(VGPU_CMD_MIGRATE,
                 vgpu_cmd_migrate{{}, enqueue(e), flags, static_cast<std::uint32_t>(objects.size()), 0})
        .ids(e.waits)
        .ids(objects);
}

namespace {

void append_number(std::vector<std::byte>& to, std::uint64_t n) {
    for (; n >= 0x80; n >>= 7) {
        to.push_back(static_cast<std::byte>(n | 0x80));
    }
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
