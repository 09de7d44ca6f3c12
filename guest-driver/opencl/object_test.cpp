// SPDX-License-Identifier: GPL-2.0-or-later
//
// Reference counts, kernel arguments, maps.
#include "test_fixture.hpp"

#include "image_format.hpp"
#include "program.hpp"

namespace kagemusha::opencl {
namespace {

class object_test : public driver_test {
protected:
    struct sent_argument {
        vgpu_argument header{};
        std::uint64_t value = 0;
    };

    // The argument list of the newest launch.
    std::vector<sent_argument> sent_arguments() {
        EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
        const recorded_command last = gpu->commands(VGPU_CMD_LAUNCH).back();
        const auto launch = last.as<vgpu_cmd_launch>();
        std::vector<sent_argument> list;
        std::size_t at = sizeof launch + 8 * launch.enqueue.wait_count;
        for (__u32 i = 0; i < launch.argument_count; ++i) {
            sent_argument one;
            std::memcpy(&one.header, last.bytes.data() + at, sizeof one.header);
            at += sizeof one.header;
            if (one.header.kind != VGPU_ARGUMENT_LOCAL) {
                std::memcpy(&one.value, last.bytes.data() + at, std::min<std::size_t>(one.header.bytes, 8));
                at += padded(one.header.bytes);
            }
            list.push_back(one);
        }
        EXPECT_EQ(at, last.bytes.size());
        return list;
    }

    std::uint64_t newest_buffer_id() {
        return gpu->commands(VGPU_CMD_CREATE_BUFFER).back().as<vgpu_cmd_create_buffer>().id;
    }
};

TEST_F(object_test, what_holds_what) {
    cl_int error = CL_SUCCESS;
    cl_context own = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    cl_mem whole = cl.clCreateBuffer(own, 0, 4096, nullptr, &error);
    const cl_buffer_region region{1024, 1024};
    cl_mem part = cl.clCreateSubBuffer(whole, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    static int context_gone;
    context_gone = 0;
    ASSERT_EQ(cl.clSetContextDestructorCallback(
                  own, [](cl_context, void*) { ++context_gone; }, nullptr),
              CL_SUCCESS);
    cl.clReleaseContext(own);
    cl.clReleaseMemObject(whole);
    EXPECT_EQ(context_gone, 0);
    cl_mem parent = nullptr;
    EXPECT_EQ(cl.clGetMemObjectInfo(part, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(parent, whole);
    cl.clReleaseMemObject(part);
    EXPECT_EQ(context_gone, 1);
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(destroyed(VGPU_OBJECT_MEMORY), 2u);
    EXPECT_EQ(destroyed(VGPU_OBJECT_CONTEXT), 1u);
    // Parts go before what they are part of.
    const auto order = gpu->commands(VGPU_CMD_DESTROY);
    EXPECT_EQ(order.back().as<vgpu_cmd_destroy>().kind, static_cast<__u32>(VGPU_OBJECT_CONTEXT));
}

TEST_F(object_test, a_kernel_keeps_its_program_from_being_built_again) {
    cl_program program = make_program();
    cl_int error = CL_SUCCESS;
    cl_kernel kernel = cl.clCreateKernel(program, "none", &error);
    EXPECT_EQ(cl.clBuildProgram(program, 0, nullptr, "", nullptr, nullptr), CL_INVALID_OPERATION);
    cl.clReleaseKernel(kernel);
    EXPECT_EQ(cl.clBuildProgram(program, 0, nullptr, "", nullptr, nullptr), CL_SUCCESS);
    cl.clReleaseProgram(program);
}

TEST_F(object_test, arguments_are_sent_by_their_kinds) {
    cl_kernel kernel = make_kernel("copy");
    cl_mem buffer = make_buffer(64);
    const int number = 42;
    EXPECT_EQ(launch(kernel), CL_INVALID_KERNEL_ARGS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 0, sizeof buffer, &buffer), CL_SUCCESS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 1, sizeof buffer, nullptr), CL_SUCCESS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 2, sizeof number, &number), CL_SUCCESS);
    EXPECT_EQ(launch(kernel), CL_INVALID_KERNEL_ARGS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 3, 128, nullptr), CL_SUCCESS);
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    const auto sent = sent_arguments();
    ASSERT_EQ(sent.size(), 4u);
    EXPECT_EQ(sent[0].header.kind, static_cast<__u32>(VGPU_ARGUMENT_MEMORY));
    EXPECT_EQ(sent[0].value, newest_buffer_id());
    EXPECT_EQ(sent[1].header.kind, static_cast<__u32>(VGPU_ARGUMENT_MEMORY));
    EXPECT_EQ(sent[1].value, 0u);
    EXPECT_EQ(sent[2].header.kind, static_cast<__u32>(VGPU_ARGUMENT_BYTES));
    EXPECT_EQ(sent[2].value, 42u);
    EXPECT_EQ(sent[3].header.kind, static_cast<__u32>(VGPU_ARGUMENT_LOCAL));
    EXPECT_EQ(sent[3].header.bytes, 128u);

    EXPECT_EQ(cl.clSetKernelArg(kernel, 4, sizeof number, &number), CL_INVALID_ARG_INDEX);
    EXPECT_EQ(cl.clSetKernelArg(kernel, 2, 2, &number), CL_INVALID_ARG_SIZE);
    EXPECT_EQ(cl.clSetKernelArg(kernel, 2, sizeof number, nullptr), CL_INVALID_ARG_VALUE);
    EXPECT_EQ(cl.clSetKernelArg(kernel, 0, 4, &buffer), CL_INVALID_ARG_SIZE);
    const cl_mem wrong = reinterpret_cast<cl_mem>(queue);
    EXPECT_EQ(cl.clSetKernelArg(kernel, 0, sizeof wrong, &wrong), CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(cl.clSetKernelArg(kernel, 3, 64, &number), CL_INVALID_ARG_VALUE);
    EXPECT_EQ(cl.clSetKernelArg(kernel, 3, 0, nullptr), CL_INVALID_ARG_SIZE);
    cl.clReleaseMemObject(buffer);
    cl.clReleaseKernel(kernel);
}

TEST_F(object_test, a_launch_has_the_arguments_of_its_time) {
    cl_kernel kernel = make_kernel("copy");
    cl_mem buffer = make_buffer(64);
    int number = 1;
    cl.clSetKernelArg(kernel, 0, sizeof buffer, &buffer);
    cl.clSetKernelArg(kernel, 1, sizeof buffer, &buffer);
    cl.clSetKernelArg(kernel, 2, sizeof number, &number);
    cl.clSetKernelArg(kernel, 3, 128, nullptr);
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    EXPECT_EQ(sent_arguments()[2].value, 1u);
    number = 2; // same form: only the value changes
    cl.clSetKernelArg(kernel, 2, sizeof number, &number);
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    EXPECT_EQ(sent_arguments()[2].value, 2u);
    cl.clSetKernelArg(kernel, 3, 256, nullptr); // another amount of local memory: encoded anew
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    EXPECT_EQ(sent_arguments()[3].header.bytes, 256u);
    cl_int error = CL_SUCCESS;
    cl_kernel clone = cl.clCloneKernel(kernel, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    number = 3;
    cl.clSetKernelArg(kernel, 2, sizeof number, &number);
    ASSERT_EQ(launch(clone), CL_SUCCESS);
    EXPECT_EQ(sent_arguments()[2].value, 2u);
    cl.clReleaseKernel(clone);
    cl.clReleaseKernel(kernel);
    cl.clReleaseMemObject(buffer);
}

TEST_F(object_test, without_argument_info_the_value_decides) {
    gpu->argument_info_available = false;
    cl_kernel kernel = make_kernel("copy");
    cl_mem buffer = make_buffer(64);
    const cl_ulong number = 0x1234567812345678;
    ASSERT_EQ(cl.clSetKernelArg(kernel, 0, sizeof buffer, &buffer), CL_SUCCESS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 1, sizeof number, &number), CL_SUCCESS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 2, 3, "ab"), CL_SUCCESS);
    ASSERT_EQ(cl.clSetKernelArg(kernel, 3, 99, nullptr), CL_SUCCESS);
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    const auto sent = sent_arguments();
    EXPECT_EQ(sent[0].header.kind, static_cast<__u32>(VGPU_ARGUMENT_MEMORY));
    EXPECT_EQ(sent[0].value, newest_buffer_id());
    EXPECT_EQ(sent[1].header.kind, static_cast<__u32>(VGPU_ARGUMENT_BYTES));
    EXPECT_EQ(sent[1].value, number);
    EXPECT_EQ(sent[2].header.bytes, 3u);
    EXPECT_EQ(sent[3].header.kind, static_cast<__u32>(VGPU_ARGUMENT_LOCAL));
    cl.clReleaseKernel(kernel);
    cl.clReleaseMemObject(buffer);
}

TEST_F(object_test, launch_sizes_are_checked) {
    cl_kernel kernel = make_kernel("none");
    const std::size_t size[3] = {512, 1, 1}, three[1] = {3}, large[1] = {512}, deep[3] = {1, 1, 128},
                      none[1] = {0};
    const auto enqueue = [&](cl_uint dimensions, const std::size_t* global, const std::size_t* local) {
        return cl.clEnqueueNDRangeKernel(queue, kernel, dimensions, nullptr, global, local, 0, nullptr,
                                         nullptr);
    };
    EXPECT_EQ(enqueue(0, size, nullptr), CL_INVALID_WORK_DIMENSION);
    EXPECT_EQ(enqueue(4, size, nullptr), CL_INVALID_WORK_DIMENSION);
    EXPECT_EQ(enqueue(1, size, three), CL_INVALID_WORK_GROUP_SIZE);
    EXPECT_EQ(enqueue(1, size, large), CL_INVALID_WORK_ITEM_SIZE);
    EXPECT_EQ(enqueue(3, size, deep), CL_INVALID_WORK_ITEM_SIZE);
    EXPECT_EQ(enqueue(1, size, none), CL_INVALID_WORK_GROUP_SIZE);
    EXPECT_EQ(enqueue(1, none, nullptr), CL_SUCCESS); // nothing to do is allowed
    EXPECT_EQ(enqueue(1, nullptr, nullptr), CL_SUCCESS);
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_TRUE(gpu->commands(VGPU_CMD_LAUNCH).empty());
    cl.clReleaseKernel(kernel);
}

TEST_F(object_test, a_required_group_size_counts_more_than_the_kernels_largest) {
    const std::size_t size[1] = {256}, half[1] = {128}, quarter[1] = {64};
    const auto enqueue = [&](cl_kernel kernel, const std::size_t* local) {
        return cl.clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, size, local, 0, nullptr, nullptr);
    };
    gpu->max_work_group = 64;
    cl_kernel any = make_kernel("none");
    EXPECT_EQ(enqueue(any, half), CL_INVALID_WORK_GROUP_SIZE);
    EXPECT_EQ(enqueue(any, quarter), CL_SUCCESS);
    cl.clReleaseKernel(any);
    // NVIDIA's runtime says 256 as the largest of a kernel that requires 512, and runs it.
    gpu->required_group = {128, 1, 1};
    gpu->kernels["required"] = {};
    cl_kernel required = make_kernel("required");
    EXPECT_EQ(enqueue(required, half), CL_SUCCESS);
    EXPECT_EQ(enqueue(required, quarter), CL_INVALID_WORK_GROUP_SIZE);
    cl.clReleaseKernel(required);
}

TEST_F(object_test, maps_move_what_their_flags_ask_for) {
    cl_mem buffer = make_buffer(4096);
    cl_int error = CL_SUCCESS;
    const auto map = [&](cl_map_flags flags, std::size_t offset, std::size_t bytes) {
        void* const place =
            cl.clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, offset, bytes, 0, nullptr, nullptr, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        return static_cast<char*>(place);
    };
    const auto unmap = [&](void* place) {
        EXPECT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, place, 0, nullptr, nullptr), CL_SUCCESS);
        EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
    };
    const auto count = [&](vgpu_opcode opcode) { return gpu->commands(opcode).size(); };

    unmap(map(CL_MAP_READ, 0, 4096));
    EXPECT_EQ(count(VGPU_CMD_READ_BUFFER), 1u);
    EXPECT_EQ(count(VGPU_CMD_WRITE_BUFFER), 0u); // nothing can have changed

    char* place = map(CL_MAP_WRITE_INVALIDATE_REGION, 1024, 1024);
    EXPECT_EQ(count(VGPU_CMD_READ_BUFFER), 1u); // its content is not wanted
    std::memset(place, 'x', 1024);
    unmap(place);
    EXPECT_EQ(count(VGPU_CMD_WRITE_BUFFER), 1u);

    place = map(CL_MAP_READ | CL_MAP_WRITE, 1000, 48);
    EXPECT_EQ(place[23], 0);
    EXPECT_EQ(place[24], 'x');
    place[24] = 'y';
    unmap(place);
    char back = 0;
    ASSERT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 1024, 1, &back, 0, nullptr, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(back, 'y');

    char* const first = map(CL_MAP_READ, 0, 100);
    char* const again = map(CL_MAP_READ, 0, 200);
    EXPECT_EQ(first, again); // the same region of one view, counted twice
    cl_uint maps = 0;
    ASSERT_EQ(cl.clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof maps, &maps, nullptr), CL_SUCCESS);
    EXPECT_EQ(maps, 2u);
    unmap(first);
    unmap(again);
    EXPECT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, first, 0, nullptr, nullptr), CL_INVALID_VALUE);
    cl.clReleaseMemObject(buffer);
}

// A small region could go inside the command, as a copy of the moment of the unmap.
TEST_F(object_test, what_a_command_reads_into_a_mapping_is_written_back) {
    cl_mem buffer = make_buffer(4096);
    cl_mem other = make_buffer(4096);
    const std::vector<char> text(100, 't');
    ASSERT_EQ(
        cl.clEnqueueWriteBuffer(queue, other, CL_TRUE, 0, text.size(), text.data(), 0, nullptr, nullptr),
        CL_SUCCESS);
    cl_int error = CL_SUCCESS;
    void* const place = cl.clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_WRITE, 0, text.size(), 0,
                                              nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    // nobody waits for the transfer
    ASSERT_EQ(cl.clEnqueueReadBuffer(queue, other, CL_FALSE, 0, text.size(), place, 0, nullptr, nullptr),
              CL_SUCCESS);
    ASSERT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, place, 0, nullptr, nullptr), CL_SUCCESS);
    std::vector<char> found(text.size());
    ASSERT_EQ(
        cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, found.size(), found.data(), 0, nullptr, nullptr),
        CL_SUCCESS);
    EXPECT_EQ(found, text);
    cl.clReleaseMemObject(other);
    cl.clReleaseMemObject(buffer);
}

TEST_F(object_test, memory_stays_until_an_unmap_is_over) {
    cl_mem buffer = make_buffer(65536);
    cl_int error = CL_SUCCESS;
    void* place = cl.clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0, 65536, 0,
                                        nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    static std::atomic<int> gone;
    gone = 0;
    ASSERT_EQ(
        cl.clSetMemObjectDestructorCallback(buffer, [](cl_mem, void*) { ++gone; }, nullptr), CL_SUCCESS);
    gpu->hold_completions();
    ASSERT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, place, 0, nullptr, nullptr), CL_SUCCESS);
    ASSERT_EQ(cl.clReleaseMemObject(buffer), CL_SUCCESS);
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    EXPECT_EQ(gone, 0);
    gpu->release_completions();
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(gone, 1);
}

TEST_F(object_test, use_host_pointer_maps_to_the_programs_memory) {
    std::vector<char> mine(8192, 'm');
    cl_mem buffer = make_buffer(mine.size(), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, mine.data());
    const char other = 'o';
    ASSERT_EQ(cl.clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 5000, 1, &other, 0, nullptr, nullptr),
              CL_SUCCESS);
    cl_int error = CL_SUCCESS;
    void* place =
        cl.clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 4096, 4096, 0, nullptr, nullptr, &error);
    EXPECT_EQ(place, mine.data() + 4096);
    EXPECT_EQ(mine[5000], 'o');
    EXPECT_EQ(mine[5001], 'm');
    ASSERT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, place, 0, nullptr, nullptr), CL_SUCCESS);
    cl.clReleaseMemObject(buffer);
}

TEST_F(object_test, a_failed_creation_gives_its_error_and_leaves_nothing) {
    gpu->fail_next(VGPU_CMD_CREATE_BUFFER, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    cl_int error = CL_SUCCESS;
    EXPECT_EQ(cl.clCreateBuffer(context, 0, 64, nullptr, &error), nullptr);
    EXPECT_EQ(error, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(destroyed(VGPU_OBJECT_MEMORY), 0u);
}

TEST(type_sizes, of_opencl_c) {
    EXPECT_EQ(size_of_type("int"), 4u);
    EXPECT_EQ(size_of_type("ulong"), 8u);
    EXPECT_EQ(size_of_type("unsigned char"), 1u);
    EXPECT_EQ(size_of_type("float3"), 16u);
    EXPECT_EQ(size_of_type("double16"), 128u);
    EXPECT_EQ(size_of_type("float5"), 0u);
    EXPECT_EQ(size_of_type("real"), 0u);
    EXPECT_EQ(size_of_type("int2x"), 0u);
    EXPECT_EQ(size_of_type(""), 0u);
}

TEST(element_sizes, of_image_formats) {
    EXPECT_EQ(element_bytes({CL_RGBA, CL_UNSIGNED_INT8}), 4u);
    EXPECT_EQ(element_bytes({CL_R, CL_FLOAT}), 4u);
    EXPECT_EQ(element_bytes({CL_RG, CL_HALF_FLOAT}), 4u);
    EXPECT_EQ(element_bytes({CL_RGB, CL_UNORM_SHORT_565}), 2u);
    EXPECT_EQ(element_bytes({CL_RGBA, CL_UNORM_SHORT_565}), 0u);
    EXPECT_EQ(element_bytes({0, CL_FLOAT}), 0u);
}

} // namespace
} // namespace kagemusha::opencl
