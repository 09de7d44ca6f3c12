// SPDX-License-Identifier: GPL-2.0-or-later
// Buffers, sub-buffers and transfers of every shape, on every backend.
#include <CL/cl.h>

#include <algorithm>
#include <numeric>

#include "gpu/conformance/session.hpp"

namespace kagemusha::gpu::conformance {
namespace {

using codec::stream_builder;

class buffers : public backend_test {};

TEST_P(buffers, WriteThenReadGivesTheSameBytes) {
    const auto context = s->context(), queue = s->queue(context);
    constexpr std::uint64_t bytes = 1 << 20;
    const auto buffer = s->buffer(context, bytes);
    std::iota(s->guest_as<std::uint32_t>(), s->guest_as<std::uint32_t>() + bytes / 4, 7u);
    ASSERT_EQ(s->write(queue, buffer, 0, bytes), 0);
    std::memset(s->guest(bytes), 0xaa, bytes);
    ASSERT_EQ(s->read(queue, buffer, bytes, bytes), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(std::memcmp(s->guest(0), s->guest(bytes), bytes), 0);
}

TEST_P(buffers, InlineDataIsTakenBeforeTheAnswer) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 16);
    const std::uint32_t data[4] = {1, 2, 3, 4};
    const auto event = s->new_id();
    s->ok(stream_builder().write_buffer({queue, event}, buffer, 0, std::as_bytes(std::span(data))));
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
    ASSERT_EQ(s->read(queue, buffer, 0, 16), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(std::memcmp(s->guest(), data, sizeof(data)), 0);
}

TEST_P(buffers, RunsGoWhereTheyBelong) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 20'000), part = s->new_id();
    s->ok(stream_builder().create_sub_buffer(part, buffer, 4096, 8192));
    std::vector<std::byte> expected(20'000, std::byte{0x11});
    std::memset(s->guest(), 0x11, expected.size());
    ASSERT_EQ(s->write(queue, buffer, 0, expected.size()), 0);
    // each once alone, and many in one command
    std::vector<codec::written_run> runs;
    const std::pair<std::uint64_t, std::size_t> places[] = {{0, 1}, {1, 1}, {100, 5000}, {8191, 1}};
    for (const auto& [offset, bytes] : places) {
        runs.push_back({offset, std::vector<std::byte>(bytes, static_cast<std::byte>(0x40 + runs.size()))});
        std::fill_n(expected.begin() + 4096 + static_cast<std::ptrdiff_t>(offset), bytes,
                    runs.back().data[0]);
    }
    const auto written = s->new_id();
    s->ok(stream_builder().write_runs(queue, part, std::span(runs).first(1)));
    s->ok(stream_builder().write_runs(queue, part, std::span(runs).subspan(1)).marker({queue, written}));
    EXPECT_EQ(s->sink.wait_event(written).status, 0);
    ASSERT_EQ(s->read(queue, buffer, 65536, expected.size()), 0);
    // from an unordered queue too, where a marker waits for each part
    const auto unordered = s->queue(context, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE), third = s->new_id();
    s->ok(
        stream_builder().write_runs(unordered, buffer, std::span(runs).first(3)).marker({unordered, third}));
    EXPECT_EQ(s->sink.wait_event(third).status, 0);
    ASSERT_EQ(s->read(queue, buffer, 131072, expected.size()), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(std::memcmp(s->guest(65536), expected.data(), expected.size()), 0);
    for (const codec::written_run& run : std::span(runs).first(3))
        std::copy(run.data.begin(), run.data.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(run.offset));
    EXPECT_EQ(std::memcmp(s->guest(131072), expected.data(), expected.size()), 0);
}

// As many as a backend may carry out together: at any distance from a word, in a part of a buffer that kernels only
// read, one behind the other.
TEST_P(buffers, ThousandsOfShortRunsGoWhereTheyBelong) {
    constexpr std::size_t bytes = std::size_t{1} << 20, origin = 4096;
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, bytes, CL_MEM_READ_ONLY), part = s->new_id();
    s->ok(stream_builder().create_sub_buffer(part, buffer, origin, bytes - origin));
    std::vector<std::byte> expected(bytes, std::byte{0x11});
    std::memset(s->guest(), 0x11, bytes);
    ASSERT_EQ(s->write(queue, buffer, 0, bytes), 0);
    for (std::uint32_t round = 0; round < 20; ++round) {
        std::vector<codec::written_run> runs;
        std::size_t offset = round;
        for (std::uint32_t i = 0; i < (round == 0 ? 2000u : 40 * round); ++i) {
            const std::size_t length = 1 + (i + round) % (round == 0 ? 4 : 13);
            runs.push_back({offset, std::vector<std::byte>(length, static_cast<std::byte>(i * 7 + round))});
            std::copy(runs.back().data.begin(), runs.back().data.end(),
                      expected.begin() + static_cast<std::ptrdiff_t>(origin + offset));
            offset += length + 1 + i % 29;
        }
        ASSERT_LE(offset, bytes - origin);
        s->ok(stream_builder().write_runs(queue, part, runs));
    }
    ASSERT_EQ(s->read(queue, buffer, 0, bytes), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(std::memcmp(s->guest(), expected.data(), bytes), 0);
}

TEST_P(buffers, ScatteredGuestMemoryIsReadAndWrittenInOrder) {
    const auto context = s->context(), queue = s->queue(context);
    const kagemusha_segment a{0, 4096, 0, 0}, b{20'000, 1, 0, 0}, c{30'000, 100'000, 0, 0},
        d{200'001, 777, 0, 0}, e{8192, 4096, 0, 0}, f{12288, 300, 0, 0};
    const kagemusha_segment order[] = {d, a, c, b, e, f};
    std::uint64_t bytes = 0;
    std::vector<std::byte> expected;
    for (std::uint64_t i = 0; i < 400'000; ++i)
        s->guest()[i] = static_cast<std::byte>(i * 31 + i / 256);
    for (const kagemusha_segment& g : order) {
        expected.insert(expected.end(), s->guest(g.offset), s->guest(g.offset) + g.bytes);
        bytes += g.bytes;
    }
    const auto buffer = s->buffer(context, bytes + 100);
    const auto written = s->new_id(), read = s->new_id();
    stream_builder out;
    const auto data = out.payload(false, {d, a, c, b, e, f});
    s->ok(out.write_buffer({queue, written}, buffer, 100, data));
    ASSERT_EQ(s->sink.wait_event(written).status, 0);

    // Back into one piece, and into pieces again, with a guard around each.
    constexpr std::uint64_t flat = 1 << 20;
    stream_builder in;
    const auto back = in.payload(true, 0, flat, bytes);
    s->ok(in.read_buffer({queue, read}, buffer, 100, back));
    ASSERT_EQ(s->sink.wait_event(read).status, 0);
    if (GetParam().moves_bytes)
        EXPECT_EQ(std::memcmp(s->guest(flat), expected.data(), bytes), 0);

    constexpr std::uint64_t pieces = 2 << 20;
    std::memset(s->guest(pieces), 0x5a, 400'000);
    const auto moved = [&](kagemusha_segment g) {
        g.offset += pieces;
        return g;
    };
    stream_builder again;
    const auto scattered_back =
        again.payload(true, {moved(d), moved(a), moved(c), moved(b), moved(e), moved(f)});
    const auto scattered_read = s->new_id();
    s->ok(again.read_buffer({queue, scattered_read}, buffer, 100, scattered_back));
    ASSERT_EQ(s->sink.wait_event(scattered_read).status, 0);
    std::vector<bool> inside(400'000);
    for (const kagemusha_segment& g : order)
        std::fill_n(inside.begin() + static_cast<std::ptrdiff_t>(g.offset), g.bytes, true);
    for (std::uint64_t i = 0; i < 400'000; ++i) {
        if (!inside[i]) {
            ASSERT_EQ(s->guest(pieces)[i], std::byte{0x5a})
                << "a byte between the segments was written: " << i;
        } else if (GetParam().moves_bytes) {
            ASSERT_EQ(s->guest(pieces)[i], s->guest()[i]) << i;
        }
    }
}

TEST_P(buffers, PagesInReverseOrder) {
    const auto context = s->context(), queue = s->queue(context);
    constexpr std::uint64_t pages = 512, bytes = pages * 4096;
    for (std::uint64_t i = 0; i < bytes / 8; ++i)
        s->guest_as<std::uint64_t>()[i] = i * 0x9e3779b97f4a7c15ull;
    const auto buffer = s->buffer(context, bytes);
    // The builder's payloads come from lists written in the source; this one is written into its tables.
    std::vector<kagemusha_segment> segments;
    for (std::uint64_t p = pages; p-- > 0;)
        segments.push_back({p * 4096, 4096, 0, 0});
    const kagemusha_payload entries[] = {{bytes, 0, pages, 0, 0}};
    stream_builder write;
    const auto event = s->new_id();
    write.write_buffer({queue, event}, buffer, 0, vgpu_payload_ref{bytes, 0, 0});
    s->under_test->execute({1'000'000, write.stream(), entries, segments});
    EXPECT_EQ(s->sink.wait_done(1'000'000).status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
    ASSERT_EQ(s->sink.wait_event(event).status, 0);
    ASSERT_EQ(s->read(queue, buffer, bytes, bytes), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    for (std::uint64_t p = 0; p < pages; ++p)
        ASSERT_EQ(std::memcmp(s->guest(bytes + p * 4096), s->guest((pages - 1 - p) * 4096), 4096), 0) << p;
}

// More than one piece of whatever staging there is, in one run of memory and in two.
TEST_P(buffers, LargeTransfersArriveWhole) {
    const auto context = s->context();
    constexpr std::uint64_t bytes = (9u << 20) + 1234, back = 12u << 20;
    for (std::uint64_t i = 0; i < bytes / 8; ++i)
        s->guest_as<std::uint64_t>()[i] = i * 0x9e3779b97f4a7c15ull;
    const auto buffer = s->buffer(context, bytes + 100);
    for (const std::uint64_t properties :
         {std::uint64_t{0}, std::uint64_t{CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE}}) {
        const auto queue = s->queue(context, properties);
        for (const bool scattered : {false, true}) {
            std::memset(s->guest(back), 0x5a, bytes + 8192);
            const auto written = s->new_id(), read = s->new_id();
            stream_builder b;
            const auto data = b.payload(false, 0, 0, bytes);
            b.write_buffer({queue, written}, buffer, 100, data);
            const std::uint64_t first = scattered ? (5u << 20) + 17 : bytes;
            const auto to =
                scattered ? b.payload(true, {{back, first, 0, 0}, {back + first + 4096, bytes - first, 0, 0}})
                          : b.payload(true, 0, back, bytes);
            b.read_buffer({queue, read, {written}}, buffer, 100, to);
            s->ok(b);
            ASSERT_EQ(s->sink.wait_event(read).status, 0);
            EXPECT_EQ(*s->guest(back + bytes + (scattered ? 4096 : 0)), std::byte{0x5a});
            if (!GetParam().moves_bytes)
                continue;
            EXPECT_EQ(std::memcmp(s->guest(back), s->guest(), first), 0);
            EXPECT_EQ(
                std::memcmp(s->guest(back + first + (scattered ? 4096 : 0)), s->guest(first), bytes - first),
                0);
        }
    }
}

// Reads into the same memory without a wait in between: the last one is what is there in the end, also where a
// large one takes longer on its way into guest memory than a small one behind it.
TEST_P(buffers, ReadsIntoTheSameMemoryEndInTheirOrder) {
    const auto context = s->context(), queue = s->queue(context);
    constexpr std::uint64_t bytes = 6u << 20, small = 10'000, target = 8u << 20;
    const auto large = s->buffer(context, bytes), little = s->buffer(context, small);
    std::memset(s->guest(), 1, bytes);
    ASSERT_EQ(s->write(queue, large, 0, bytes), 0);
    std::memset(s->guest(), 2, small);
    ASSERT_EQ(s->write(queue, little, 0, small), 0);
    for (int round = 0; round < 10; ++round) {
        std::memset(s->guest(target), 0, bytes);
        const auto event = s->new_id();
        stream_builder b;
        const auto all = b.payload(true, 0, target, bytes),
                   part = b.payload(true, 0, target + bytes - small, small);
        b.read_buffer({queue, 0}, large, 0, all).read_buffer({queue, event}, little, 0, part);
        s->ok(b);
        ASSERT_EQ(s->sink.wait_event(event).status, 0);
        KAGEMUSHA_NEEDS(moves_bytes);
        ASSERT_EQ(*s->guest(target + bytes - small - 1), std::byte{1}) << round;
        for (std::uint64_t i = bytes - small; i < bytes; ++i)
            ASSERT_EQ(s->guest(target)[i], std::byte{2}) << round << ' ' << i;
    }
}

// A program may wait for a later command of the same queue instead of the read itself.
TEST_P(buffers, ReadsWithoutAnEventAreInPlaceWhenALaterCommandCompletes) {
    const auto context = s->context(), queue = s->queue(context);
    constexpr std::uint64_t piece = 24'000, count = 20, target = 4 << 20;
    const auto buffer = s->buffer(context, piece * count);
    for (std::uint64_t i = 0; i < piece * count; ++i)
        s->guest()[i] = static_cast<std::byte>(i * 131 + i / 251);
    ASSERT_EQ(s->write(queue, buffer, 0, piece * count), 0);
    for (int round = 0; round < 25; ++round) {
        std::memset(s->guest(target), 0x11, piece * count * 2);
        stream_builder b;
        for (std::uint64_t i = 0; i < count; ++i) { // in two halves that lie apart, so that it is scattered
            const std::uint64_t at = target + i * 2 * piece;
            const auto data = b.payload(true, {{at + piece, piece / 2, 0, 0}, {at, piece / 2, 0, 0}});
            b.read_buffer({queue, 0}, buffer, i * piece, data);
        }
        const auto event = s->new_id();
        b.marker({queue, event});
        s->submit_only(b);
        ASSERT_EQ(s->sink.wait_event(event).status, 0);
        KAGEMUSHA_NEEDS(moves_bytes);
        for (std::uint64_t i = 0; i < count; ++i) {
            const std::uint64_t at = target + i * 2 * piece;
            ASSERT_EQ(std::memcmp(s->guest(at + piece), s->guest(i * piece), piece / 2), 0)
                << round << ' ' << i;
            ASSERT_EQ(std::memcmp(s->guest(at), s->guest(i * piece + piece / 2), piece / 2), 0)
                << round << ' ' << i;
        }
    }
}

// More at once than a backend has memory of one kind for; each place is read into twice, and the later one counts.
TEST_P(buffers, ManySmallReadsAtOnce) {
    const auto context = s->context(), queue = s->queue(context);
    constexpr std::uint64_t piece = 100, count = 150, target = 1 << 20;
    const auto first = s->buffer(context, piece * count), second = s->buffer(context, piece * count);
    for (const auto& [buffer, factor] : {std::pair{first, 7u}, std::pair{second, 11u}}) {
        for (std::uint64_t i = 0; i < piece * count; ++i)
            s->guest()[i] = static_cast<std::byte>(i * factor + i / 251);
        ASSERT_EQ(s->write(queue, buffer, 0, piece * count), 0);
    }
    for (int round = 0; round < 10; ++round) {
        std::memset(s->guest(target), 0, piece * count);
        stream_builder b;
        for (std::uint64_t i = 0; i < count; ++i)
            for (const auto buffer : {first, second})
                b.read_buffer({queue, 0}, buffer, i * piece, b.payload(true, 0, target + i * piece, piece));
        const auto event = s->new_id();
        b.marker({queue, event});
        s->submit_only(b);
        ASSERT_EQ(s->sink.wait_event(event).status, 0);
        KAGEMUSHA_NEEDS(moves_bytes);
        ASSERT_EQ(std::memcmp(s->guest(target), s->guest(), piece * count), 0) << round;
    }
}

TEST_P(buffers, ContentAtCreation) {
    const auto context = s->context(), queue = s->queue(context);
    for (std::uint64_t i = 0; i < 20'000; ++i)
        s->guest()[i] = static_cast<std::byte>(i * 7);
    const auto id = s->new_id();
    stream_builder b;
    const auto content = b.payload(false, {{4096, 5000, 0, 0}, {100, 3000, 0, 0}});
    s->ok(b.create_buffer(id, context, 8000, CL_MEM_READ_WRITE, content));
    ASSERT_EQ(s->read(queue, id, 1 << 20, 8000), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(std::memcmp(s->guest(1 << 20), s->guest(4096), 5000), 0);
    EXPECT_EQ(std::memcmp(s->guest((1 << 20) + 5000), s->guest(100), 3000), 0);
}

TEST_P(buffers, SubBufferIsAWindowIntoItsBuffer) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 16384), part = s->new_id();
    s->ok(stream_builder().create_sub_buffer(part, buffer, 4096, 8192));
    std::iota(s->guest_as<std::uint32_t>(), s->guest_as<std::uint32_t>() + 4096, 0u);
    ASSERT_EQ(s->write(queue, buffer, 0, 16384), 0);
    ASSERT_EQ(s->read(queue, part, 65536, 8192), 0);
    if (GetParam().moves_bytes)
        EXPECT_EQ(std::memcmp(s->guest(65536), s->guest(4096), 8192), 0);
    // Scattered, through the part.
    std::memset(s->guest(32768), 0x11, 8192);
    stream_builder b;
    const auto event = s->new_id();
    const auto data = b.payload(false, {{36864, 4096, 0, 0}, {32768, 4096, 0, 0}});
    s->ok(b.write_buffer({queue, event}, part, 0, data));
    ASSERT_EQ(s->sink.wait_event(event).status, 0);
    // The buffer goes first; the part keeps it alive.
    ASSERT_EQ(s->read(queue, buffer, 65536, 16384), 0);
    s->ok(stream_builder().destroy(VGPU_OBJECT_MEMORY, buffer));
    ASSERT_EQ(s->read(queue, part, 131072, 8192), 0);
    EXPECT_EQ(s->info_value<std::uint64_t>(VGPU_INFO_MEMORY, CL_MEM_OFFSET, part), 4096u);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(s->guest(65536 + 4095)[0], s->guest(4095)[0]);
    EXPECT_EQ(s->guest(65536 + 4096)[0], std::byte{0x11});
    EXPECT_EQ(s->guest(65536 + 12287)[0], std::byte{0x11});
    EXPECT_EQ(s->guest(65536 + 12288)[0], s->guest(12288)[0]);
    EXPECT_EQ(std::memcmp(s->guest(131072), s->guest(32768), 8192), 0);
}

// A rectangle of 3 slices of 5 rows of 40 bytes; the payload is cut inside rows.
TEST_P(buffers, RectanglesTouchOnlyTheirBytes) {
    const auto context = s->context(), queue = s->queue(context);
    constexpr std::uint64_t row = 64, slice = row * 8, bytes = slice * 4;
    constexpr std::uint64_t host_row = 50, host_slice = host_row * 6;
    constexpr std::uint64_t payload = 2 * host_slice + 4 * host_row + 40;
    const auto buffer = s->buffer(context, bytes);
    for (std::uint64_t i = 0; i < 8192; ++i)
        s->guest()[i] = static_cast<std::byte>(i * 13 + 1);
    std::memset(s->guest(8192), 0, bytes);
    ASSERT_EQ(s->write(queue, buffer, 8192, bytes), 0);

    vgpu_cmd_transfer_rect c{};
    c.enqueue = {queue, s->new_id(), 0, 0};
    c.buffer = buffer;
    c.buffer_origin[0] = 8;
    c.buffer_origin[1] = 2;
    c.buffer_origin[2] = 1;
    c.region[0] = 40;
    c.region[1] = 5;
    c.region[2] = 3;
    c.buffer_row_pitch = row;
    c.buffer_slice_pitch = slice;
    c.host_row_pitch = host_row;
    c.host_slice_pitch = host_slice;
    for (const bool scattered : {false, true}) {
        stream_builder w;
        c.enqueue.event = s->new_id();
        const std::uint64_t cut = host_row + 17; // inside the second row
        c.data = scattered
                     ? w.payload(false, {{0, cut, 0, 0}, {cut, payload - cut - 3, 0, 0}, {4096, 3, 0, 0}})
                     : w.payload(false, 0, 0, payload);
        std::memcpy(s->guest(4096), s->guest(payload - 3), 3);
        w.begin(VGPU_CMD_WRITE_BUFFER_RECT, c);
        s->ok(w);
        ASSERT_EQ(s->sink.wait_event(c.enqueue.event).status, 0);

        std::memset(s->guest(16384), 0x77, 8192);
        stream_builder r;
        c.enqueue.event = s->new_id();
        c.data = scattered ? r.payload(true, {{16384, cut, 0, 0}, {16384 + 4096, payload - cut, 0, 0}})
                           : r.payload(true, 0, 16384, payload);
        r.begin(VGPU_CMD_READ_BUFFER_RECT, c);
        s->ok(r);
        ASSERT_EQ(s->sink.wait_event(c.enqueue.event).status, 0);
        for (std::uint64_t i = 0; i < payload; ++i) {
            const std::uint64_t at = !scattered || i < cut ? 16384 + i : 16384 + 4096 + (i - cut);
            const std::uint64_t x = i % host_slice % host_row, y = i % host_slice / host_row;
            if (x < 40 && y < 5) {
                if (GetParam().moves_bytes)
                    ASSERT_EQ(s->guest(at)[0], s->guest(i)[0]) << "byte " << i;
            } else {
                ASSERT_EQ(s->guest(at)[0], std::byte{0x77}) << "between the rows: byte " << i;
            }
        }
    }

    ASSERT_EQ(s->read(queue, buffer, 32768, bytes), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    for (std::uint64_t i = 0; i < bytes; ++i) {
        const std::uint64_t x = i % row, y = i / row % 8, z = i / slice;
        const bool in = x >= 8 && x < 48 && y >= 2 && y < 7 && z >= 1;
        const std::byte expected =
            in ? s->guest((z - 1) * host_slice + (y - 2) * host_row + (x - 8))[0] : std::byte{0};
        ASSERT_EQ(s->guest(32768 + i)[0], expected) << "in the buffer: byte " << i;
    }
}

TEST_P(buffers, CopyAndFill) {
    const auto context = s->context(), queue = s->queue(context);
    const auto a = s->buffer(context, 4096), b = s->buffer(context, 4096);
    const std::uint32_t pattern = 0xdeadbeef;
    stream_builder stream;
    stream.fill_buffer({queue}, a, 0, 4096, std::as_bytes(std::span(&pattern, 1)));
    const std::uint8_t one = 7;
    stream.fill_buffer({queue}, b, 0, 4096, std::as_bytes(std::span(&one, 1)));
    stream.copy_buffer({queue}, a, b, 1024, 512, 2048);
    s->ok(stream);
    s->ok(stream_builder().copy_rect({queue}, a, b, {{0, 0, 0}}, {{16, 1, 0}}, {{8, 4, 1}}, 64, 64 * 4));
    ASSERT_EQ(s->read(queue, b, 0, 4096), 0);
    KAGEMUSHA_NEEDS(moves_bytes);
    for (std::uint64_t i = 0; i < 4096; ++i) {
        const bool copied = i >= 512 && i < 2560;
        const std::uint64_t x = i % 64, y = i / 64;
        const bool boxed = x >= 16 && x < 24 && y >= 1 && y < 5;
        const std::byte expected =
            copied || boxed ? reinterpret_cast<const std::byte*>(&pattern)[i % 4] : std::byte{7};
        ASSERT_EQ(s->guest(i)[0], expected) << i;
    }
}

TEST_P(buffers, RangesBehindTheEndAreRefused) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 4096);
    const auto event = s->new_id();
    stream_builder b;
    const auto data = b.payload(true, 0, 0, 100);
    s->ok(b.read_buffer({queue, event}, buffer, 4000, data));
    EXPECT_EQ(s->sink.wait_event(event).status, CL_INVALID_VALUE);

    const auto copy = s->new_id();
    s->ok(stream_builder().copy_buffer({queue, copy}, buffer, buffer, 0, 4090, 100));
    EXPECT_EQ(s->sink.wait_event(copy).status, CL_INVALID_VALUE);

    EXPECT_EQ(s->submit(stream_builder().create_sub_buffer(s->new_id(), buffer, 4000, 100)).result,
              CL_INVALID_VALUE);

    vgpu_cmd_transfer_rect c{};
    c.enqueue = {queue, s->new_id(), 0, 0};
    c.buffer = buffer;
    c.buffer_origin[1] = 63;
    c.region[0] = 64;
    c.region[1] = 2;
    c.region[2] = 1;
    c.buffer_row_pitch = c.host_row_pitch = 64;
    c.buffer_slice_pitch = c.host_slice_pitch = 128;
    stream_builder rect;
    c.data = rect.payload(true, 0, 0, 128);
    rect.begin(VGPU_CMD_READ_BUFFER_RECT, c);
    s->ok(rect);
    EXPECT_EQ(s->sink.wait_event(c.enqueue.event).status, CL_INVALID_VALUE);
}

INSTANTIATE_TEST_SUITE_P(backends, buffers, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::gpu::conformance
