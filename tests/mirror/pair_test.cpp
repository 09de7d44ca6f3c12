// SPDX-License-Identifier: GPL-2.0-or-later
// Two devices in one process, joined by a Unix socket: what one executes for its guest, the other one has
// too. "Has" is what digests over every live buffer say, which are computed on both sides' GPUs.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "codec/cl_numbers.hpp"
#include "codec/sample_session.hpp"
#include "tests/mirror/cut_link.hpp"
#include "tests/support/guest.hpp"

namespace kagemusha::test {
namespace {

const backend_case cases[] = {
    {"null", "null", "memory=1", true, false},
    {"pocl", "opencl", "", false, true},
};

constexpr const char* source = R"(
    kernel void square(global uint* out, global const uint* in, uint add) {
        size_t i = get_global_id(0);
        out[i] = in[i] * in[i] + add;
    })";

// What it writes is another thing in each process (an address) and on each kind of device.
constexpr const char* unlike_source = R"(
    kernel void unlike(global ulong* out, uint add) {
        size_t i = get_global_id(0);
        out[i] = (ulong)out + get_local_size(0) * 3 + get_num_groups(0) * 5 + add;
    })";

constexpr const char* sum_source = R"(
    kernel void sum(volatile global uint* sums, uint add) {
        size_t i = get_global_id(0);
        for (uint r = 0; r < 256; ++r) {
            volatile global uint* at = sums + (i + r) % 16;
            uint before, after;
            do {
                before = *at;
                after = as_uint(as_float(before) + 1.0f / (float)(1 + i * 7 + r + add));
            } while (atomic_cmpxchg(at, before, after) != before);
        }
    })";

constexpr std::uint64_t count = 65536, bytes = count * 4;

class pair : public testing::TestWithParam<backend_case> {
protected:
    std::string address(const char* name = "standby") const { return directory_.socket(name); }

    void start_standby() {
        const std::string at = address();
        auto c = config_of(GetParam(), true);
        c.standby_listen = at.c_str();
        standby = std::make_unique<host>(c);
        EXPECT_EQ(kagemusha_device_standby_address(standby->device()), at);
    }
    // `at` empty: nobody yet.
    void start_primary(const std::string& at) {
        auto c = config_of(GetParam());
        c.replicate_to = at.c_str();
        c.replicable = 1;
        primary = std::make_unique<guest>(c);
    }
    void wait_protected() {
        host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
        host::wait([this] { return standby->is(KAGEMUSHA_REPLICATION_READY); }, "a ready standby");
        EXPECT_STREQ(primary->status().degraded, "");
    }

    // Objects and some work on them.
    void begin_work() {
        context_ = primary->context();
        queue_ = primary->queue(context_);
        in_ = primary->buffer(context_, bytes);
        out_ = primary->buffer(context_, bytes);
        kernel_ = primary->kernel(context_, source, "square");
        auto* words = primary->memory_as<std::uint32_t>();
        std::iota(words, words + count, 1u);
        primary->write(queue_, in_, 0, bytes);
    }
    void launch(std::uint32_t add) {
        codec::launch_size size;
        size.global[0] = count;
        codec::stream_builder b;
        b.launch({queue_, 0, {}}, kernel_, size,
                 codec::argument_builder{}.memory(0, out_).memory(1, in_).scalar(2, add));
        b.copy_buffer({queue_, 0, {}}, out_, in_, 0, 64, 1024);
        primary->ok(b);
    }

    // Every live buffer is the same on both sides.
    void expect_equal() {
        const auto before = primary->status();
        ASSERT_EQ(kagemusha_device_request_digest(primary->device(), 1), 0);
        host::wait([&] { return primary->status().digests_compared > before.digests_compared; },
                   "a comparison");
        const auto p = primary->status();
        EXPECT_EQ(p.digests_different, before.digests_different);
        host::wait([this] { return standby->status().digests_compared != 0; }, "a comparison");
        EXPECT_EQ(standby->status().digests_different, 0u);
        EXPECT_EQ(standby->status().faults, 0u);
    }

    // How many chunks differ.
    std::uint64_t compare() {
        const auto before = primary->status();
        EXPECT_EQ(kagemusha_device_request_digest(primary->device(), 1), 0);
        host::wait([&] { return primary->status().digests_compared > before.digests_compared; },
                   "a comparison");
        return primary->status().digests_different - before.digests_different;
    }

    void launch_once(std::uint32_t add) {
        codec::launch_size size;
        size.global[0] = count;
        if (group_items_ != 0) {
            size.local[0] = group_items_;
            size.local[1] = size.local[2] = 1;
        }
        codec::stream_builder b;
        b.launch({queue_, 0, {}}, kernel_, size, codec::argument_builder{}.memory(0, out_).scalar(1, add));
        primary->ok(b);
        primary->finish(queue_);
    }

    // A kernel that may give something else on each side, until its memory is sent after each launch; or ten
    // times.
    void launch_until_shipped(const char* text, const char* name, std::uint64_t group_items,
                              std::uint64_t out_bytes) {
        start_standby();
        start_primary(address());
        wait_protected();
        context_ = primary->context();
        queue_ = primary->queue(context_);
        out_ = primary->buffer(context_, out_bytes);
        kernel_ = primary->kernel(context_, text, name);
        group_items_ = group_items;
        primary->write(queue_, out_, 0, out_bytes); // zeros
        // Three differences in a row are wanted, and on a busy machine both may add in the same order now and
        // then.
        for (std::uint32_t i = 0; i < 60 && primary->status().memory_shipped == 0; ++i) {
            launch_once(i);
            if (compare() != 0) {
                host::wait(
                    [&] { return primary->status().digests_repaired == primary->status().digests_different; },
                    "a repair");
            }
            // No comparison here: one that finds nothing ends the row of differences.
        }
    }

    void wait_executed() {
        host::wait(
            [this] {
                const auto s = primary->status();
                return s.executed == s.appended && s.lag_entries == 0;
            },
            "everything to be executed");
    }

    temporary_directory directory_; // the devices end first, the primary before the standby
    std::unique_ptr<host> standby;
    std::unique_ptr<guest> primary;
    std::uint64_t context_ = 0, queue_ = 0, in_ = 0, out_ = 0, kernel_ = 0, group_items_ = 0;
};

TEST_P(pair, attached_from_the_start) {
    start_standby();
    start_primary(address());
    wait_protected();
    begin_work();
    launch(7);
    launch(8);
    primary->finish(queue_);
    expect_equal();
    wait_executed();
    EXPECT_GE(standby->stats().launches, 2u);

    // What the guest reads is not executed there.
    primary->read(queue_, out_, bytes, bytes);
    if (GetParam().executes)
        EXPECT_EQ(primary->memory_as<std::uint32_t>(bytes)[2], 3u * 3 + 8);
    wait_executed();
    EXPECT_EQ(standby->stats().workers_lost, 0u);
}

TEST_P(pair, attached_in_the_middle) {
    start_primary("");
    begin_work();
    launch(7);
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_OFF));
    start_standby();
    char error[256];
    ASSERT_EQ(kagemusha_device_replicate_to(primary->device(), address().c_str(), error, sizeof error), 0);
    for (std::uint32_t i = 0; i < 20; ++i) { // the guest goes on meanwhile
        launch(i);
        primary->finish(queue_);
    }
    wait_protected();
    EXPECT_EQ(kagemusha_device_replicate_to(primary->device(), address("other").c_str(), error, sizeof error),
              -EALREADY);
    launch(9);
    primary->finish(queue_);
    expect_equal();
}

// Until the guest has set its events the standby can't have them. Somebody has to know what is waited for.
TEST_P(pair, a_copy_that_waits_for_the_guest_says_so) {
    start_primary("");
    begin_work();
    const std::uint64_t event = primary->new_id();
    codec::stream_builder make, set;
    primary->ok(make.create_user_event(event, context_));
    start_standby();
    char error[256];
    ASSERT_EQ(kagemusha_device_replicate_to(primary->device(), address().c_str(), error, sizeof error), 0);
    host::wait([this] { return std::strstr(primary->status().degraded, "user event") != nullptr; },
               "the reason");
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_SYNCING));
    primary->ok(set.set_user_event(event, 0));
    wait_protected();
    EXPECT_STREQ(primary->status().degraded, "");
    launch(9);
    primary->finish(queue_);
    expect_equal();
}

// What the primary's compiler has made is used by the standby's, if both GPUs are of one kind.
TEST_P(pair, compiled_programs_cross) {
    for (const bool from_the_start : {true, false}) {
        SCOPED_TRACE(from_the_start ? "from the start" : "in the middle");
        if (from_the_start) {
            start_standby();
            start_primary(address());
            wait_protected();
        } else {
            start_primary("");
        }
        begin_work();
        launch(1);
        primary->finish(queue_);
        if (!from_the_start) {
            start_standby();
            char error[256];
            ASSERT_EQ(
                kagemusha_device_replicate_to(primary->device(), address().c_str(), error, sizeof error), 0);
            wait_protected();
        }
        const bool alike = std::string(kagemusha_device_gpu_name(primary->device())) ==
                           kagemusha_device_gpu_name(standby->device());
        if (GetParam().executes && alike) {
            host::wait([this] { return standby->status().built_packs != 0; }, "a compiled program");
            EXPECT_GE(primary->status().built_packs, standby->status().built_packs);
            EXPECT_GT(standby->status().built_bytes, 1000u);
        }
        launch(2);
        expect_equal();
        if (!GetParam().executes || !alike) {
            EXPECT_EQ(primary->status().built_packs, 0u);
            EXPECT_EQ(standby->status().built_packs, 0u);
        }
        EXPECT_EQ(standby->status().built_dropped, 0u);
        primary.reset();
        standby.reset();
    }
}

TEST_P(pair, link_cut_and_restored) {
    start_standby();
    cut_link link(address("proxy").substr(5), address().substr(5));
    start_primary(address("proxy"));
    wait_protected();
    begin_work();
    launch(1);
    link.cut();
    host::wait([this] { return !primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "degradation");
    EXPECT_NE(std::strlen(primary->status().degraded), 0u);
    launch(2); // nobody holds the guest up
    primary->finish(queue_);
    link.restore();
    wait_protected();
    launch(3);
    primary->finish(queue_);
    expect_equal();
    EXPECT_GE(primary->status().connections, 2u);
}

TEST_P(pair, standby_dies_and_another_one_comes) {
    start_standby();
    start_primary(address());
    wait_protected();
    begin_work();
    launch(1);
    standby.reset();
    host::wait([this] { return !primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "degradation");
    for (std::uint32_t i = 0; i < 20; ++i) {
        launch(i);
        primary->finish(queue_);
    }
    EXPECT_EQ(primary->status().lag_bytes, 0u); // nothing is kept for nobody
    start_standby();
    wait_protected();
    launch(3);
    primary->finish(queue_);
    expect_equal();
}

// The same guest handle names other native memory on each side: a kernel that writes its buffer's native
// address writes another one there. That is found, counted and repaired.
TEST_P(pair, native_handles_differ) {
    if (!GetParam().executes)
        GTEST_SKIP() << "needs kernels that run";
    start_primary("");
    const auto c = primary->context();
    const auto q = primary->queue(c);
    // The standby never has the first one, in whose place its second one is. Of one size, for allocators that
    // keep sizes apart (those of the sanitizers); written, because PoCL allocates what is used.
    const auto gone = primary->buffer(c, 4096);
    const auto memory = primary->buffer(c, 4096);
    primary->write(q, gone, 0, 4096);
    primary->write(q, memory, 0, 4096);
    const auto where =
        primary->kernel(c, "kernel void where(global ulong* p) { p[get_global_id(0)] = (ulong)p; }", "where");
    primary->destroy(VGPU_OBJECT_MEMORY, gone);
    start_standby();
    char error[256];
    ASSERT_EQ(kagemusha_device_replicate_to(primary->device(), address().c_str(), error, sizeof error), 0);
    wait_protected();
    codec::launch_size size;
    size.global[0] = 512;
    codec::stream_builder b;
    b.launch({q, 0, {}}, where, size, codec::argument_builder{}.memory(0, memory));
    primary->ok(b);
    primary->finish(q);
    ASSERT_EQ(kagemusha_device_request_digest(primary->device(), 1), 0);
    host::wait([this] { return primary->status().digests_different == 1; }, "a difference");
    host::wait([this] { return primary->status().digests_repaired == 1; }, "a repair");
    const auto before = primary->status();
    ASSERT_EQ(kagemusha_device_request_digest(primary->device(), 1), 0);
    host::wait([&] { return primary->status().digests_compared > before.digests_compared; }, "a comparison");
    EXPECT_EQ(primary->status().digests_different, 1u);
    EXPECT_EQ(standby->status().digests_different, 1u);
}

// Payloads of all sizes: copied, sent from where they are, and in pieces. The guest overwrites its memory as
// soon as it may.
TEST_P(pair, guest_memory_is_the_guests_after_the_answer) {
    start_standby();
    start_primary(address());
    wait_protected();
    const auto c = primary->context();
    const auto q = primary->queue(c);
    std::vector<std::uint64_t> buffers;
    for (const std::uint64_t size : {100u, 16384u, 40000u, 300000u, 9000000u}) {
        buffers.push_back(primary->buffer(c, size));
        for (std::uint64_t i = 0; i < size; ++i)
            *primary->memory(i) = static_cast<std::byte>(i * 3 + size);
        primary->write(q, buffers.back(), 0, size);
        std::memset(primary->memory(), 0xee, size);
    }
    expect_equal();
    wait_executed();
}

// A write and a read into the memory that it writes from, with nobody waiting in between.
TEST_P(pair, memory_that_is_written_from_and_read_into_at_once) {
    start_standby();
    start_primary(address());
    wait_protected();
    const auto c = primary->context();
    const auto q = primary->queue(c);
    for (const std::uint64_t size : {20000u, 300000u, 9000000u}) {
        const auto other = primary->buffer(c, size);
        std::memset(primary->memory(), 0xee, size);
        primary->write(q, other, 0, size);
        for (const bool in_one_request : {true, false}) {
            const auto buffer = primary->buffer(c, size);
            std::memset(primary->memory(), in_one_request ? 1 : 2, size);
            const std::uint64_t read_is_done = primary->new_id();
            codec::stream_builder write, read;
            codec::stream_builder& second = in_one_request ? write : read;
            write.write_buffer({q, 0, {}}, buffer, 0, write.payload(false, 0, 0, size));
            second.read_buffer({q, read_is_done, {}}, other, 0, second.payload(true, 0, 0, size));
            primary->submit(write);
            if (!in_one_request)
                primary->submit(read);
            EXPECT_EQ(primary->complete(read_is_done), 0);
            if (GetParam().executes)
                EXPECT_EQ(*primary->memory(size - 1), std::byte{0xee});
        }
    }
    expect_equal();
    wait_executed();
    EXPECT_EQ(primary->status().digests_different, 0u);
}

// The log's memory, the registry and the standby's objects return to nothing.
TEST_P(pair, nothing_is_left_of_a_file) {
    start_standby();
    start_primary(address());
    wait_protected();
    begin_work();
    launch(1);
    primary->finish(queue_);
    wait_executed();
    EXPECT_NE(standby->stats().objects, 0u);
    primary->close(1);
    wait_executed();
    host::wait([this] { return primary->status().registry_bytes == 0; }, "an empty registry");
    EXPECT_EQ(primary->status().lag_bytes, 0u);
    host::pump();
    EXPECT_EQ(standby->stats().objects, 0u);
    EXPECT_EQ(standby->stats().files_open, 0u);
    EXPECT_EQ(standby->status().held_bytes, 0u);
    primary->open(2);
    begin_work();
    launch(2);
    primary->finish(queue_);
    expect_equal();
}

// Backends refuse some of it (images), and then what needs it: a standby does the same.
TEST_P(pair, every_kind_of_command) {
    if (GetParam().executes)
        GTEST_SKIP() << "the sample's kernel writes where it should not";
    start_standby();
    start_primary(address());
    wait_protected();
    for (const codec::sample_request& r : codec::sample_session())
        primary->run(r.builder);
    wait_executed();
    EXPECT_EQ(standby->status().faults, 0u);
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING));
    EXPECT_GE(standby->stats().launches, 65u);
}

// A kernel whose result is not the same on both sides: found, mended by sending the memory, and after some
// times the memory is sent after each launch.
TEST_P(pair, what_differs_is_repaired) {
    if (!GetParam().executes)
        GTEST_SKIP() << "no kernel is executed";
    launch_until_shipped(unlike_source, "unlike", 0, count * 8); // groups as the device likes
    if (primary->status().digests_different == 0) {
        ASSERT_STREQ(config_of(GetParam(), true).gpu, config_of(GetParam()).gpu)
            << "no two devices are that alike";
        GTEST_SKIP() << "these two devices have their memory at the same addresses";
    }
    EXPECT_EQ(primary->status().memory_shipped, 1u);
    EXPECT_EQ(compare(), 0u) << "after the repair";
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING));
}

// A kernel that adds floats with atomics, in an order that is not the same twice.
TEST_P(pair, what_is_not_the_same_twice_is_repaired) {
    if (!GetParam().executes || std::thread::hardware_concurrency() < 2)
        GTEST_SKIP() << "needs kernels that run on more than one thread";
    launch_until_shipped(sum_source, "sum", 64, 64);
    EXPECT_GE(primary->status().digests_different, 3u);
    EXPECT_EQ(primary->status().memory_shipped, 1u);
    EXPECT_EQ(compare(), 0u) << "after the repair";
    launch_once(0);
    EXPECT_EQ(compare(), 0u) << "it is sent after each launch";
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING));
}

// A second primary is told why it is refused; the first one does not notice.
TEST_P(pair, one_primary_at_a_time) {
    start_standby();
    start_primary(address());
    wait_protected();
    const std::string at = address();
    auto c = config_of(GetParam());
    c.replicate_to = at.c_str();
    guest other(c);
    host::wait([&] { return std::strstr(other.status().degraded, "one at a time") != nullptr; }, "a refusal");
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING));
}

TEST_P(pair, of_another_vm_is_refused) {
    start_standby();
    const std::string at = address();
    auto c = config_of(GetParam());
    c.replicate_to = at.c_str();
    c.vm_id = "another-vm";
    guest other(c);
    host::wait([&] { return std::strstr(other.status().degraded, "another-vm") != nullptr; }, "a refusal");
    EXPECT_EQ(standby->status().executed, 0u);
}

// A standby's GPU that takes a second for each read of a comparison: the guest waits when it is 200 ms
// behind.
TEST(pair_of_unlike_speed, the_guest_waits_for_a_gpu_that_is_behind) {
    const temporary_directory directory;
    const std::string at = directory.socket("standby");
    const backend_case fast{"null", "null", "memory=1", true, false};
    const backend_case slow{"faulty", "faulty", "backend=null,memory=1,on=read:*,do=delay:1000", true, false};
    auto c = config_of(slow, true);
    c.standby_listen = at.c_str();
    host standby(c);
    c = config_of(fast);
    c.replicate_to = at.c_str();
    c.max_behind_ms = 200;
    guest primary(c);
    host::wait([&] { return primary.is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    const auto context = primary.context(), queue = primary.queue(context);
    primary.write(queue, primary.buffer(context, bytes), 0, bytes);
    ASSERT_EQ(kagemusha_device_congested(primary.device()), 0);
    ASSERT_EQ(kagemusha_device_request_digest(primary.device(), 1), 0);
    host::wait([&] { return kagemusha_device_congested(primary.device()) == 1; }, "the guest to be held");
    EXPECT_GE(primary.status().behind_ms, 200u);
    EXPECT_TRUE(primary.is(KAGEMUSHA_REPLICATION_PROTECTING));
    host::wait([&] { return kagemusha_device_congested(primary.device()) == 0; }, "the guest to go on");
    EXPECT_EQ(primary.status().behind_ms, 0u);
    EXPECT_NE(primary.status().digests_compared, 0u);
    EXPECT_EQ(primary.status().digests_different, 0u);
}

// A GPU that refuses user events refuses them every time: its standby says so at the first.
TEST(pair_of_unlike_gpus, what_the_standbys_gpu_never_does_is_told_at_once) {
    const temporary_directory directory;
    const std::string at = directory.socket("standby");
    const backend_case able{"null", "null", "memory=1", true, false};
    const backend_case unable{"faulty", "faulty", "backend=null,memory=1,on=create:2+,do=error:-5", true,
                              false};
    auto c = config_of(unable, true);
    c.standby_listen = at.c_str();
    host standby(c);
    c = config_of(able);
    c.replicate_to = at.c_str();
    guest primary(c);
    host::wait([&] { return primary.is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    const auto context = primary.context();
    primary.ok(codec::stream_builder().create_user_event(primary.new_id(), context));
    host::wait([&] { return std::strstr(primary.status().degraded, "error -5") != nullptr; }, "a sentence");
    kagemusha_device_stats stats{};
    stats.struct_bytes = sizeof(stats);
    kagemusha_device_get_stats(standby.device(), &stats);
    EXPECT_EQ(stats.calls, 2u) << "the context, and the user event once";
}

INSTANTIATE_TEST_SUITE_P(backends, pair, testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

} // namespace
} // namespace kagemusha::test
