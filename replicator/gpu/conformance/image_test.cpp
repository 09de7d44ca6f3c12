// SPDX-License-Identifier: GPL-2.0-or-later
// Images and samplers, on every backend that has them.
#include <CL/cl.h>

#include "gpu/conformance/session.hpp"

namespace kagemusha::gpu::conformance {
namespace {

using codec::argument_builder;
using codec::stream_builder;

class images : public backend_test {};

constexpr std::uint64_t width = 60, height = 40, pixel = 4;

vgpu_cmd_create_image rgba(std::uint64_t id, std::uint64_t context, std::uint32_t type) {
    vgpu_cmd_create_image c{};
    c.id = id;
    c.context = context;
    c.flags = CL_MEM_READ_WRITE;
    c.channel_order = CL_RGBA;
    c.channel_type = CL_UNSIGNED_INT8;
    c.image_type = type;
    c.width = width;
    c.content = codec::no_payload;
    return c;
}

std::uint64_t image_2d(session& s, std::uint64_t context) {
    auto c = rgba(s.new_id(), context, CL_MEM_OBJECT_IMAGE2D);
    c.height = height;
    s.ok(stream_builder().create_image(c));
    return c.id;
}

void count_up(session& s, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i)
        s.guest(i)[0] = static_cast<std::byte>(i * 11 + i / 251);
}

TEST_P(images, WithoutThemTheAnswerIsTheStandards) {
    if (GetParam().images)
        GTEST_SKIP() << "has images";
    const auto context = s->context();
    EXPECT_EQ(s->submit(stream_builder().create_image_2d(s->new_id(), context, 8, 8)).result,
              CL_INVALID_OPERATION);
    EXPECT_EQ(s->submit(stream_builder().create_sampler(s->new_id(), context)).result, CL_INVALID_OPERATION);
    EXPECT_EQ(s->info_value<cl_bool>(VGPU_INFO_DEVICE, CL_DEVICE_IMAGE_SUPPORT, 0),
              static_cast<cl_bool>(CL_FALSE));
}

TEST_P(images, RectanglesOfAnImageTouchOnlyTheirPixels) {
    KAGEMUSHA_NEEDS(images);
    const auto context = s->context(), queue = s->queue(context), image = image_2d(*s, context);
    count_up(*s, 65536);
    const auto all = s->new_id();
    stream_builder w;
    const auto data = w.payload(false, {{0, 4000, 0, 0}, {8192, width * height * pixel - 4000, 0, 0}});
    s->ok(w.transfer_image(true, {queue, all}, image, {{0, 0, 0}}, {{width, height, 1}}, width * pixel, 0,
                           data));
    ASSERT_EQ(s->sink.wait_event(all).status, 0);
    const auto source = [&](std::uint64_t x, std::uint64_t y, std::uint64_t b) {
        const std::uint64_t i = (y * width + x) * pixel + b;
        return s->guest(i < 4000 ? i : 8192 + i - 4000)[0];
    };
    for (const bool scattered : {false, true}) {
        constexpr std::uint64_t pitch = 100, rows = 7, columns = 20,
                                bytes = (rows - 1) * pitch + columns * pixel;
        std::memset(s->guest(1 << 20), 0x66, 8192);
        stream_builder r;
        const auto event = s->new_id();
        const auto out = scattered
                             ? r.payload(true, {{1 << 20, 133, 0, 0}, {(1 << 20) + 4096, bytes - 133, 0, 0}})
                             : r.payload(true, 0, 1 << 20, bytes);
        s->ok(
            r.transfer_image(false, {queue, event}, image, {{5, 9, 0}}, {{columns, rows, 1}}, pitch, 0, out));
        ASSERT_EQ(s->sink.wait_event(event).status, 0);
        for (std::uint64_t i = 0; i < bytes; ++i) {
            const std::byte got = s->guest((1 << 20) + (!scattered || i < 133 ? i : 4096 + i - 133))[0];
            const std::uint64_t x = i % pitch, y = i / pitch;
            if (x < columns * pixel)
                ASSERT_EQ(got, source(5 + x / pixel, 9 + y, x % pixel)) << i;
            else
                ASSERT_EQ(got, std::byte{0x66}) << "between the rows: " << i;
        }
    }
}

TEST_P(images, APayloadThatIsTooShortIsRefused) {
    KAGEMUSHA_NEEDS(images);
    const auto context = s->context(), queue = s->queue(context), image = image_2d(*s, context);
    for (const bool write : {true, false}) {
        const auto event = s->new_id();
        stream_builder b;
        const auto data = b.payload(!write, 0, 0, 1000);
        s->ok(b.transfer_image(write, {queue, event}, image, {{0, 0, 0}}, {{width, height, 1}}, width * pixel,
                               0, data));
        EXPECT_EQ(s->sink.wait_event(event).status, CL_INVALID_VALUE);
    }
}

TEST_P(images, TransfersGoOnWhenThereIsNoStagingLeft) {
    KAGEMUSHA_NEEDS(images);
    // Guest memory in single pages, none beside the next, and pixels across the pages' ends: all of it is
    // staged as long as staging lasts, and there is less than these transfers would take together.
    constexpr std::uint64_t side = 1920, row = side * pixel, bytes = row * side, page = 4096;
    constexpr int count = 20; // 281 MiB
    const auto context = s->context(), queue = s->queue(context);
    std::uint64_t image[2];
    for (std::uint64_t& id : image) {
        auto c = rgba(s->new_id(), context, CL_MEM_OBJECT_IMAGE2D);
        c.width = c.height = side;
        s->ok(stream_builder().create_image(c));
        id = c.id;
    }
    // Page k of the payload is page k of its guest memory, but each pair of pages is swapped.
    const auto place = [](std::uint64_t i) { return ((i / page) ^ 1) * page + i % page; };
    const auto scattered = [](std::uint64_t base) {
        std::vector<kagemusha_segment> segments{{base + page + 2, page - 2, 0, 0}};
        for (std::uint64_t k = 1; k < bytes / page; ++k)
            segments.push_back({base + (k ^ 1) * page, page, 0, 0});
        segments.push_back({base + bytes + page, 2, 0, 0});
        return segments;
    };
    constexpr std::uint64_t from = 0, to = 16 << 20;
    for (std::uint64_t i = 0; i < bytes / 8; ++i)
        s->guest_as<std::uint64_t>(from)[i] = i * 0x9e3779b97f4a7c15ull;

    // The first image with what staging gives, the second, by the last ones, without.
    const auto all = [&](bool write, std::uint64_t base) {
        const auto gate = s->user_event(context);
        std::vector<std::uint64_t> events, tokens;
        for (int i = 0; i < count; ++i) {
            events.push_back(s->new_id());
            stream_builder b;
            const auto data = b.payload(!write, scattered(base));
            b.transfer_image(write, {queue, events.back(), {gate}}, image[i >= count - 2], {{0, 0, 0}},
                             {{side, side, 1}}, row, 0, data);
            tokens.push_back(s->submit_only(b));
        }
        s->ok(stream_builder().set_user_event(gate, 0));
        for (const auto event : events)
            ASSERT_EQ(s->sink.wait_event(event).status, 0);
        for (const auto token : tokens)
            s->sink.wait_done(token);
    };
    all(true, from);
    all(false, to);
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 2; i < bytes; ++i)
        wrong += s->guest(to + place(i))[0] != s->guest(from + place(i))[0];
    EXPECT_EQ(wrong, 0u);
    // What the first image has, too.
    std::memset(s->guest(to), 0, bytes + 2 * page);
    const auto event = s->new_id();
    stream_builder r;
    const auto back = r.payload(true, 0, to, bytes);
    s->ok(r.transfer_image(false, {queue, event}, image[0], {{0, 0, 0}}, {{side, side, 1}}, row, 0, back));
    ASSERT_EQ(s->sink.wait_event(event).status, 0);
    for (std::uint64_t i = 2; i < bytes; ++i)
        wrong += s->guest(to + i - 2)[0] != s->guest(from + place(i))[0];
    EXPECT_EQ(wrong, 0u);
}

TEST_P(images, CopyFillAndContent) {
    KAGEMUSHA_NEEDS(images);
    const auto context = s->context(), queue = s->queue(context);
    count_up(*s, 65536);
    auto c = rgba(s->new_id(), context, CL_MEM_OBJECT_IMAGE2D);
    c.height = height;
    c.row_pitch = 256; // wider than a row
    stream_builder create;
    c.content =
        create.payload(false, {{0, 5000, 0, 0}, {5000, 256 * (height - 1) + width * pixel - 5000, 0, 0}});
    s->ok(create.create_image(c));
    const auto other = image_2d(*s, context);
    const auto buffer = s->buffer(context, 65536);
    stream_builder stream;
    stream.fill_image({queue}, other, {{0, 0, 0}}, {{width, height, 1}});
    stream.copy_image({queue}, c.id, other, {{10, 10, 0}}, {{0, 0, 0}}, {{8, 8, 1}});
    stream.copy_image_buffer(true, {queue}, other, buffer, {{0, 0, 0}}, {{8, 8, 1}}, 64);
    stream.copy_image_buffer(false, {queue}, other, buffer, {{20, 20, 0}}, {{8, 8, 1}}, 64);
    s->ok(stream);
    ASSERT_EQ(s->read(queue, buffer, 1 << 20, 64 + 8 * 8 * pixel), 0);
    for (std::uint64_t y = 0; y < 8; ++y)
        ASSERT_EQ(std::memcmp(s->guest((1 << 20) + 64 + y * 8 * pixel), s->guest((10 + y) * 256 + 10 * pixel),
                              8 * pixel),
                  0)
            << y;
    stream_builder r;
    const auto event = s->new_id();
    const auto out = r.payload(true, 0, 2 << 20, 8 * 8 * pixel);
    s->ok(r.transfer_image(false, {queue, event}, other, {{20, 20, 0}}, {{8, 8, 1}}, 8 * pixel, 0, out));
    ASSERT_EQ(s->sink.wait_event(event).status, 0);
    EXPECT_EQ(std::memcmp(s->guest(2 << 20), s->guest((1 << 20) + 64), 8 * 8 * pixel), 0);
}

TEST_P(images, ThreeDimensionsAndLayers) {
    KAGEMUSHA_NEEDS(images);
    const auto context = s->context(), queue = s->queue(context);
    for (const std::uint32_t type : {CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE2D_ARRAY}) {
        auto c = rgba(s->new_id(), context, type);
        c.width = 16;
        c.height = 8;
        (type == CL_MEM_OBJECT_IMAGE3D ? c.depth : c.array_size) = 4;
        s->ok(stream_builder().create_image(c));
        constexpr std::uint64_t row = 16 * pixel, slice = row * 8, bytes = slice * 4;
        count_up(*s, bytes);
        const auto written = s->new_id(), read = s->new_id();
        stream_builder w;
        const auto data = w.payload(false, {{0, 777, 0, 0}, {777, bytes - 777, 0, 0}});
        s->ok(w.transfer_image(true, {queue, written}, c.id, {{0, 0, 0}}, {{16, 8, 4}}, row, slice, data));
        ASSERT_EQ(s->sink.wait_event(written).status, 0);
        std::memset(s->guest(65536), 0x22, 65536);
        stream_builder r; // the middle, into scattered memory with gaps between slices
        constexpr std::uint64_t gap_slice = 1000, out_bytes = gap_slice + 3 * 40 + 8 * pixel;
        const auto out = r.payload(true, {{65536, 50, 0, 0}, {65536 + 4096, out_bytes - 50, 0, 0}});
        s->ok(r.transfer_image(false, {queue, read}, c.id, {{4, 2, 1}}, {{8, 4, 2}}, 40, gap_slice, out));
        ASSERT_EQ(s->sink.wait_event(read).status, 0);
        for (std::uint64_t z = 0; z < 2; ++z)
            for (std::uint64_t y = 0; y < 4; ++y)
                for (std::uint64_t x = 0; x < 8 * pixel; ++x) {
                    const std::uint64_t i = z * gap_slice + y * 40 + x;
                    const std::byte got = s->guest(65536 + (i < 50 ? i : 4096 + i - 50))[0];
                    ASSERT_EQ(got, s->guest((z + 1) * slice + (y + 2) * row + 4 * pixel + x)[0]) << i;
                }
    }
}

TEST_P(images, AKernelReadsThroughASampler) {
    KAGEMUSHA_NEEDS(images);
    const auto context = s->context(), queue = s->queue(context), image = image_2d(*s, context);
    const auto sampler = s->new_id();
    s->ok(stream_builder().begin(
        VGPU_CMD_CREATE_SAMPLER,
        vgpu_cmd_create_sampler{{}, sampler, context, 0, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, 0}));
    const auto kernel = s->kernel(s->program(context, R"(
        kernel void pick(read_only image2d_t image, sampler_t how, global uint4* out, int2 at) {
            out[0] = read_imageui(image, how, at);
        })"),
                                  "pick");
    count_up(*s, 65536);
    const auto all = s->new_id();
    stream_builder w;
    const auto data = w.payload(false, 0, 0, width * height * pixel);
    s->ok(w.transfer_image(true, {queue, all}, image, {{0, 0, 0}}, {{width, height, 1}}, width * pixel, 0,
                           data));
    ASSERT_EQ(s->sink.wait_event(all).status, 0);
    const auto out = s->buffer(context, 16);
    const std::int32_t at[2] = {33, 21};
    const auto event = s->new_id();
    s->ok(stream_builder().launch(
        {queue, event}, kernel, {},
        argument_builder().memory(0, image).sampler(1, sampler).memory(2, out).scalar(3, at)));
    ASSERT_EQ(s->sink.wait_event(event).status, 0);
    ASSERT_EQ(s->read(queue, out, 65536, 16), 0);
    for (int b = 0; b < 4; ++b)
        EXPECT_EQ(s->guest_as<std::uint32_t>(65536)[b],
                  std::to_integer<std::uint32_t>(s->guest((21 * width + 33) * pixel)[b]));
    EXPECT_EQ(s->info_value<std::size_t>(VGPU_INFO_IMAGE, CL_IMAGE_ELEMENT_SIZE, image), pixel);
    s->ok(stream_builder().destroy(VGPU_OBJECT_SAMPLER, sampler).destroy(VGPU_OBJECT_MEMORY, image));
}

TEST_P(images, FormatsAreListed) {
    KAGEMUSHA_NEEDS(images);
    const auto context = s->context();
    std::int32_t result = 0;
    const auto formats =
        s->info(VGPU_INFO_IMAGE_FORMATS, CL_MEM_OBJECT_IMAGE2D, context, CL_MEM_READ_WRITE, result);
    EXPECT_EQ(result, 0);
    EXPECT_GE(formats.size(), sizeof(cl_image_format));
    EXPECT_EQ(formats.size() % sizeof(cl_image_format), 0u);
}

INSTANTIATE_TEST_SUITE_P(backends, images, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::gpu::conformance
