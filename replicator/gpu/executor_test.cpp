// SPDX-License-Identifier: GPL-2.0-or-later
// The executor against input that the device should never have let through, and against GPUs that fail.
#include <CL/cl.h>

#include <sys/wait.h>

#include <chrono>
#include <csignal>

#include "codec/sample_session.hpp"
#include "gpu/conformance/session.hpp"

namespace kagemusha::gpu {
namespace {

using codec::argument_builder;
using codec::stream_builder;
using conformance::region_bytes;
using conformance::session;

constexpr std::string_view source = "kernel void k(global int* x, int y) { x[0] = y; }";

// ---- variables of programs, which no guest gets

TEST(program_variables, AreNotOfferedAndProgramsWithThemDoNotBuild) {
    session s("null", "variables=1");
    EXPECT_EQ(s.info_value<std::size_t>(VGPU_INFO_DEVICE, CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE, 0), 0u);
    std::int32_t result = 0;
    const auto features = s.info(VGPU_INFO_DEVICE, CL_DEVICE_OPENCL_C_FEATURES, 0, 0, result);
    ASSERT_EQ(features.size(), sizeof(cl_name_version));
    cl_name_version left;
    std::memcpy(&left, features.data(), sizeof left);
    EXPECT_STREQ(left.name, "__opencl_c_int64");

    const auto context = s.context();
    const auto make = [&](std::string_view text) {
        const auto id = s.new_id();
        s.ok(stream_builder().create_program(id, context, text));
        return id;
    };
    const auto log_of = [&](std::uint64_t program) {
        return s.info_text(VGPU_INFO_PROGRAM_BUILD, CL_PROGRAM_BUILD_LOG, program);
    };
    const auto status_of = [&](std::uint64_t program) {
        return s.info_value<cl_int>(VGPU_INFO_PROGRAM_BUILD, CL_PROGRAM_BUILD_STATUS, program);
    };
    const auto counting =
        make("global int counter = 0;\nkernel void k(global int* x, int y) { x[0] = counter++; }");
    EXPECT_EQ(s.submit(stream_builder().build_program(counting)).result, CL_BUILD_PROGRAM_FAILURE);
    EXPECT_EQ(status_of(counting), CL_BUILD_ERROR);
    EXPECT_NE(log_of(counting).find("variables at program scope"), std::string::npos) << log_of(counting);
    EXPECT_EQ(s.submit(stream_builder().create_kernel(s.new_id(), counting, "k")).result,
              CL_INVALID_PROGRAM_EXECUTABLE);

    const auto linked = s.new_id();
    const auto part =
        make("global int counter = 0;\nkernel void k(global int* x, int y) { x[0] = counter++; }");
    s.ok(stream_builder().compile_program(part, "", {}, {}));
    EXPECT_EQ(s.submit(stream_builder().link_program(linked, context, std::vector{part})).result,
              CL_LINK_PROGRAM_FAILURE);
    EXPECT_NE(log_of(linked).find("variables at program scope"), std::string::npos) << log_of(linked);

    const auto plain = make(source);
    s.ok(stream_builder().build_program(plain));
    EXPECT_EQ(status_of(plain), CL_BUILD_SUCCESS);
    EXPECT_EQ(log_of(plain), "");
}

// ---- hostile requests
// -----------------------------------------------------------------------------------------------

class hostile : public testing::Test {
protected:
    session s{"null", "memory=1"};
    std::uint64_t context = s.context(), queue = s.queue(context), buffer = s.buffer(context, 1 << 20);

    std::uint32_t status_of(const kagemusha_payload& payload, std::vector<kagemusha_segment> segments,
                            bool read, std::uint64_t bytes = 4096) {
        stream_builder b;
        const codec::enqueue_ref e{queue, s.new_id()};
        const vgpu_payload_ref ref{bytes, 0, 0};
        if (read)
            b.read_buffer(e, buffer, 0, ref);
        else
            b.write_buffer(e, buffer, 0, ref);
        const std::uint64_t token = 1'000'000 + s.new_id();
        s.under_test->execute({token, b.stream(), std::span(&payload, 1), segments});
        return s.sink.wait_done(token).status;
    }
};

TEST_F(hostile, SegmentsOutsideTheirRegion) {
    EXPECT_EQ(status_of({4096, 0, 1, 0, 0}, {{0, 4096, 0, 0}}, false), VGPU_STATUS_OK);
    const std::uint64_t most = ~std::uint64_t{0};
    for (const kagemusha_segment& segment : std::vector<kagemusha_segment>{{region_bytes, 4096, 0, 0},
                                                                           {region_bytes - 4095, 4096, 0, 0},
                                                                           {most, 4096, 0, 0},
                                                                           {most - 4095, 4096, 0, 0},
                                                                           {0, 4096, 2, 0},
                                                                           {0, 4096, 0xffffffff, 0},
                                                                           {1, 4096, 1, 0},
                                                                           {0, 4095, 0, 0},
                                                                           {0, 4097, 0, 0},
                                                                           {0, 0, 0, 0},
                                                                           {0, most, 0, 0}})
        EXPECT_EQ(status_of({4096, 0, 1, 0, 0}, {segment}, false), VGPU_STATUS_MALFORMED)
            << segment.offset << " " << segment.bytes << " " << segment.region;
    EXPECT_EQ(status_of({4096, 0, 1, 0, 0}, {{0, 4096, 1, 0}}, false), VGPU_STATUS_OK);
}

TEST_F(hostile, PayloadEntriesOutsideTheirTables) {
    const std::vector<kagemusha_segment> two = {{0, 2048, 0, 0}, {4096, 2048, 0, 0}};
    EXPECT_EQ(status_of({4096, 0, 2, 0, 0}, two, false), VGPU_STATUS_OK);
    EXPECT_EQ(status_of({4096, 1, 2, 0, 0}, two, false), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status_of({4096, 0, 3, 0, 0}, two, false), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status_of({4096, 0xffffffff, 2, 0, 0}, two, false), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status_of({4096, 3, 0xffffffff, 0, 0}, two, false), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status_of({4096, 0, 1, 0, 0}, two, false), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status_of({8192, 0, 2, 0, 0}, two, false), VGPU_STATUS_MALFORMED);
    // Read into what the guest gave for reading only.
    EXPECT_EQ(status_of({4096, 0, 2, 0, 0}, two, true), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status_of({4096, 0, 2, 1, 0}, two, true), VGPU_STATUS_OK);
}

TEST_F(hostile, NothingAfterTheBrokenCommandIsExecuted) {
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    const auto before = s.new_id(), after = s.new_id();
    stream_builder b;
    b.fill_buffer({queue, before}, buffer, 0, 16, pattern);
    const auto cut = b.stream().size();
    b.marker({queue, s.new_id()});
    reinterpret_cast<vgpu_cmd*>(b.mutable_stream().data() + cut)->flags = 1;
    b.fill_buffer({queue, after}, buffer, 0, 16, pattern);
    const auto response = s.submit(b);
    EXPECT_EQ(response.status, VGPU_STATUS_MALFORMED);
    EXPECT_EQ(response.failed_offset, cut);
    EXPECT_EQ(s.sink.wait_event(before).status, 0);
    EXPECT_FALSE(s.sink.has_event(after));
}

// Every opcode once, in an order that makes sense; then with every object missing.
TEST_F(hostile, TheSampleSessionRunsAndItsRestWithoutObjectsDoesNotCrash) {
    for (const char* backend : {"null", "faulty"}) {
        session run(backend, "memory=1");
        std::uint64_t token = 1;
        for (const auto& request : codec::sample_session()) {
            const auto& b = request.builder;
            run.under_test->execute({token, b.stream(), b.payloads(), b.segments()});
            EXPECT_EQ(run.sink.wait_done(token++).status, VGPU_STATUS_OK) << request.name;
        }
        const auto requests = codec::sample_session();
        for (std::size_t missing = 0; missing < requests.size(); ++missing) {
            session partial(backend, "memory=1");
            for (std::size_t i = 0; i < requests.size(); ++i)
                if (i != missing) {
                    const auto& b = requests[i].builder;
                    partial.under_test->execute({i, b.stream(), b.payloads(), b.segments()});
                    partial.sink.wait_done(i);
                }
        }
    }
}

// ---- faults
// -----------------------------------------------------------------------------------------------------------

struct launcher {
    explicit launcher(const std::string& options) : s("faulty", options) {
        context = s.context();
        queue = s.queue(context);
        buffer = s.buffer(context, 4096);
        kernel = s.kernel(s.program(context, source), "k");
    }
    std::uint64_t launch() {
        const auto event = s.new_id();
        s.ok(stream_builder().launch({queue, event}, kernel, {},
                                     argument_builder().memory(0, buffer).scalar(1, std::int32_t{1})));
        return event;
    }
    session s;
    std::uint64_t context, queue, buffer, kernel;
};

TEST(faults, AnErrorOnTheThirdLaunch) {
    launcher l("on=launch:3,do=error:-5");
    const auto a = l.launch(), b = l.launch(), c = l.launch(), d = l.launch();
    EXPECT_EQ(l.s.sink.wait_event(a).status, 0);
    EXPECT_EQ(l.s.sink.wait_event(b).status, 0);
    EXPECT_EQ(l.s.sink.wait_event(c).status, CL_OUT_OF_RESOURCES);
    EXPECT_EQ(l.s.sink.wait_event(d).status, 0);
}

TEST(faults, AFailureWhileItRuns) {
    launcher l("on=launch:2,do=fail:-9999");
    const auto a = l.launch(), b = l.launch(), c = l.launch();
    EXPECT_EQ(l.s.sink.wait_event(a).status, 0);
    EXPECT_EQ(l.s.sink.wait_event(b).status, -9999);
    EXPECT_EQ(l.s.sink.wait_event(c).status, 0);
    const auto dependent = l.s.new_id();
    l.s.ok(stream_builder().marker({l.queue, dependent, {b}}));
    EXPECT_EQ(l.s.sink.wait_event(dependent).status, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
}

TEST(faults, AFailureWithoutAnEventIsToldOfItsQueue) {
    launcher l("on=launch:2,do=fail:-5,on=launch:4,do=error:-4");
    for (const std::int32_t expected : {CL_OUT_OF_RESOURCES, CL_MEM_OBJECT_ALLOCATION_FAILURE}) {
        const auto arguments = argument_builder().memory(0, l.buffer).scalar(1, std::int32_t{1});
        stream_builder b;
        b.launch({l.queue}, l.kernel, {}, arguments).launch({l.queue}, l.kernel, {}, arguments);
        l.s.ok(b);
        const auto error = l.s.sink.wait_queue_error();
        EXPECT_EQ(error.queue, l.queue);
        EXPECT_EQ(error.error, expected);
        EXPECT_EQ(error.opcode, static_cast<std::uint32_t>(VGPU_CMD_LAUNCH));
    }
}

TEST(faults, ADelayHoldsBackWhatComesAfter) {
    launcher l("on=launch:1,do=delay:30");
    const auto a = l.launch(), b = l.launch();
    EXPECT_EQ(l.s.sink.wait_event(b).status, 0);
    EXPECT_EQ(l.s.sink.wait_event(a).status, 0);
    const std::vector<std::uint64_t> order = {a, b};
    EXPECT_EQ(l.s.sink.completion_order(), order);
}

TEST(faults, ALostDeviceIsToldOnceAndStaysLost) {
    launcher l("on=launch:2,do=lost");
    const auto a = l.launch(), b = l.launch(), c = l.launch();
    EXPECT_EQ(l.s.sink.wait_event(a).status, 0);
    EXPECT_EQ(l.s.sink.wait_event(b).status, CL_DEVICE_NOT_AVAILABLE);
    EXPECT_EQ(l.s.sink.wait_event(c).status, CL_DEVICE_NOT_AVAILABLE);
    EXPECT_EQ(l.s.sink.wait_lost(), static_cast<std::uint32_t>(-CL_DEVICE_NOT_AVAILABLE));
    EXPECT_EQ(l.s.submit(stream_builder().create_context(l.s.new_id())).result, CL_DEVICE_NOT_AVAILABLE);
}

TEST(faults, AHangEndsWithTheExecutor) {
    launcher l("on=launch:2,do=hang");
    const auto a = l.launch(), b = l.launch(), c = l.launch();
    EXPECT_EQ(l.s.sink.wait_event(a).status, 0);
    EXPECT_FALSE(l.s.sink.has_event(b));
    EXPECT_FALSE(l.s.sink.has_event(c));
    l.s.under_test.reset();
}

TEST(faults, CallsFailToo) {
    session s("faulty", "on=create:2,do=error:-6,on=build:1,do=error:-11,on=info:1,do=error:-5");
    const auto context = s.context();
    EXPECT_EQ(s.submit(stream_builder().create_queue(s.new_id(), context)).result, CL_OUT_OF_HOST_MEMORY);
    const auto program = s.new_id();
    s.ok(stream_builder().create_program(program, context, source));
    EXPECT_EQ(s.submit(stream_builder().build_program(program)).result, CL_BUILD_PROGRAM_FAILURE);
    s.ok(stream_builder().build_program(program));
    EXPECT_EQ(
        s.submit(stream_builder().info(VGPU_INFO_DEVICE, CL_DEVICE_NAME, 0, 0, codec::no_payload)).result,
        CL_OUT_OF_RESOURCES);
}

TEST(faults, CrashAndExitEndTheProcess) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(launcher("on=launch,do=exit:7").launch(), testing::ExitedWithCode(7), "");
    EXPECT_EXIT(launcher("on=launch,do=crash:11").launch(), testing::KilledBySignal(SIGSEGV), "");
}

TEST(faults, DelayedTransfersLetGoOfGuestMemoryWithTheExecutor) {
    session s("faulty", "backend=null,memory=1,on=read:1,do=delay:20");
    const auto context = s.context(), queue = s.queue(context), buffer = s.buffer(context, 1 << 20);
    stream_builder b;
    const auto data = b.payload(true, 0, 0, 1 << 20);
    s.submit_only(b.read_buffer({queue, s.new_id()}, buffer, 0, data));
    std::memset(s.guest(), 0x5a, 1 << 20);
    s.under_test.reset();
    for (std::uint64_t i = 0; i < 1 << 20; i += 997)
        ASSERT_EQ(s.guest(i)[0], std::byte{0x5a});
}

} // namespace
} // namespace kagemusha::gpu
