// SPDX-License-Identifier: GPL-2.0-or-later
//
// Buffers: transfers, copies, fills, sub-buffers, rectangles, maps.
#include "check.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <algorithm>
#include <cstring>

namespace check {

void buffers(const setup& s) {
    const std::size_t count = 1000;
    const std::vector<int> numbers = counting(count);
    cl_mem first = buffer_of(s, numbers);
    CHECK(content_of(s, first, count) == numbers);

    // Writes of both kinds: small ones travel in commands, large ones in place.
    for (const std::size_t size : {std::size_t{7}, std::size_t{100000}, std::size_t{3} << 20}) {
        cl_int error = CL_SUCCESS;
        cl_mem buffer = clCreateBuffer(s.context, CL_MEM_READ_WRITE, size * sizeof(int), nullptr, &error);
        CHECK_CL(error);
        const std::vector<int> data = counting(size, 5);
        CHECK_CL(clEnqueueWriteBuffer(s.queue, buffer, CL_FALSE, 0, size * sizeof(int), data.data(), 0,
                                      nullptr, nullptr));
        CHECK(content_of(s, buffer, size) == data);
        int three[3] = {};
        CHECK_CL(clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 4 * sizeof(int), sizeof three, three, 0,
                                     nullptr, nullptr));
        CHECK(three[0] == data[4] && three[2] == data[6]);
        CHECK_CL(clReleaseMemObject(buffer));
    }

    cl_mem second = buffer_of(s, std::vector<int>(count, 0));
    CHECK_CL(clEnqueueCopyBuffer(s.queue, first, second, 100 * sizeof(int), 10 * sizeof(int),
                                 50 * sizeof(int), 0, nullptr, nullptr));
    std::vector<int> expected(count, 0);
    std::copy_n(numbers.begin() + 100, 50, expected.begin() + 10);
    CHECK(content_of(s, second, count) == expected);
    CHECK_ERROR(CL_MEM_COPY_OVERLAP,
                clEnqueueCopyBuffer(s.queue, first, first, 0, 4, 16, 0, nullptr, nullptr));

    const int pattern[2] = {17, 18};
    CHECK_CL(clEnqueueFillBuffer(s.queue, second, pattern, sizeof pattern, 8, 80, 0, nullptr, nullptr));
    for (std::size_t i = 0; i < 20; ++i)
        expected[2 + i] = pattern[i % 2];
    CHECK(content_of(s, second, count) == expected);
    CHECK_ERROR(CL_INVALID_VALUE,
                clEnqueueFillBuffer(s.queue, second, pattern, 3, 0, 12, 0, nullptr, nullptr));

    // A sub-buffer is a window into its buffer, in both directions.
    const std::size_t align = device_number<cl_uint>(s, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8;
    cl_mem whole = buffer_of(s, counting(4 * align));
    cl_buffer_region region{align, 2 * align};
    cl_int error = CL_SUCCESS;
    cl_mem part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
    CHECK_CL(error);
    CHECK(content_of(s, part, 1)[0] == static_cast<int>(align / sizeof(int)));
    const int mark = -77;
    CHECK_CL(clEnqueueWriteBuffer(s.queue, part, CL_TRUE, 4, sizeof mark, &mark, 0, nullptr, nullptr));
    CHECK(content_of(s, whole, 4 * align)[align / sizeof(int) + 1] == mark);
    cl_mem associated = nullptr;
    std::size_t offset = 0;
    CHECK_CL(clGetMemObjectInfo(part, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof associated, &associated, nullptr));
    CHECK_CL(clGetMemObjectInfo(part, CL_MEM_OFFSET, sizeof offset, &offset, nullptr));
    CHECK(associated == whole && offset == align);
    // The buffer stays as long as its sub-buffer.
    CHECK_CL(clReleaseMemObject(whole));
    CHECK(content_of(s, part, 2)[1] == mark);
    CHECK_CL(clReleaseMemObject(part));

    cl_mem objects[] = {first, second};
    CHECK_CL(
        clEnqueueMigrateMemObjects(s.queue, 2, objects, CL_MIGRATE_MEM_OBJECT_HOST, 0, nullptr, nullptr));
    CHECK_CL(clFinish(s.queue));

    // Called one after the other, but perhaps on another thread and after the release has returned.
    static int order[2];
    static std::atomic<int> next;
    next = 0;
    CHECK_CL(clSetMemObjectDestructorCallback(second, [](cl_mem, void*) { order[next++] = 1; }, nullptr));
    CHECK_CL(clSetMemObjectDestructorCallback(second, [](cl_mem, void*) { order[next++] = 2; }, nullptr));
    CHECK_CL(clReleaseMemObject(first));
    CHECK_CL(clReleaseMemObject(second));
    CHECK_CL(clFinish(s.queue));
    for (int waited_ms = 0; next < 2 && waited_ms < 10000; ++waited_ms)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(next == 2 && order[0] == 2 && order[1] == 1);
}

// From one buffer to another through the program's memory, without a wait in between: the bytes are not there yet
// when the write, or the unmapping, is asked for.
void through_program_memory(const setup& s) {
    const std::size_t busy_bytes = std::size_t{64} << 20, most = 300000;
    cl_int error = CL_SUCCESS;
    cl_mem busy = clCreateBuffer(s.context, CL_MEM_READ_WRITE, busy_bytes, nullptr, &error);
    CHECK_CL(error);
    const std::vector<int> numbers = counting(most, 9);
    cl_mem source = buffer_of(s, numbers), target = buffer_of(s, std::vector<int>(most, 0));
    const int one = 1;
    const auto make_busy = [&] {
        for (int i = 0; i < 4; ++i)
            CHECK_CL(clEnqueueFillBuffer(s.queue, busy, &one, 4, 0, busy_bytes, 0, nullptr, nullptr));
    };
    for (const std::size_t count : {std::size_t{10}, most}) {
        const std::size_t bytes = count * sizeof(int);
        std::vector<int> between(count, -1);
        make_busy();
        CHECK_CL(
            clEnqueueReadBuffer(s.queue, source, CL_FALSE, 0, bytes, between.data(), 0, nullptr, nullptr));
        CHECK_CL(
            clEnqueueWriteBuffer(s.queue, target, CL_FALSE, 0, bytes, between.data(), 0, nullptr, nullptr));
        CHECK(content_of(s, target, count) == std::vector<int>(numbers.begin(), numbers.begin() + count));

        const std::size_t origin[3] = {}, region[3] = {bytes, 1, 1};
        std::fill(between.begin(), between.end(), -2);
        CHECK_CL(clEnqueueFillBuffer(s.queue, target, &one, 4, 0, bytes, 0, nullptr, nullptr));
        make_busy();
        CHECK_CL(clEnqueueReadBufferRect(s.queue, source, CL_FALSE, origin, origin, region, 0, 0, 0, 0,
                                         between.data(), 0, nullptr, nullptr));
        CHECK_CL(clEnqueueWriteBufferRect(s.queue, target, CL_FALSE, origin, origin, region, 0, 0, 0, 0,
                                          between.data(), 0, nullptr, nullptr));
        CHECK(content_of(s, target, count) == std::vector<int>(numbers.begin(), numbers.begin() + count));

        make_busy();
        void* view = clEnqueueMapBuffer(s.queue, source, CL_FALSE, CL_MAP_WRITE, 0, bytes, 0, nullptr,
                                        nullptr, &error);
        CHECK_CL(error);
        CHECK_CL(clEnqueueUnmapMemObject(s.queue, source, view, 0, nullptr, nullptr));
        CHECK(content_of(s, source, most) == numbers);
    }
    for (cl_mem memory : {busy, source, target})
        CHECK_CL(clReleaseMemObject(memory));
}

// Programs take a blocking write for done, in every queue. The standard only says that its bytes are taken.
void blocking_writes(const setup& s) {
    const std::size_t busy_bytes = std::size_t{64} << 20;
    cl_int error = CL_SUCCESS;
    cl_mem busy = clCreateBuffer(s.context, CL_MEM_READ_WRITE, busy_bytes, nullptr, &error);
    CHECK_CL(error);
    const std::size_t rounds = 20;
    cl_mem source = buffer_of(s, {-1}), target = buffer_of(s, std::vector<int>(rounds, -1));
    std::vector<cl_command_queue> others;
    for (const cl_command_queue_properties properties : {0, int{CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE}}) {
        others.push_back(clCreateCommandQueue(s.context, s.device, properties, &error));
        CHECK_CL(error);
    }
    const int one = 1;
    bool good = true;
    for (std::size_t round = 0; round < rounds; ++round) {
        cl_command_queue other = others[round % others.size()];
        int value = static_cast<int>(round);
        good =
            clEnqueueFillBuffer(s.queue, busy, &one, 4, 0, busy_bytes, 0, nullptr, nullptr) == CL_SUCCESS &&
            clEnqueueWriteBuffer(s.queue, source, CL_TRUE, 0, sizeof value, &value, 0, nullptr, nullptr) ==
                CL_SUCCESS &&
            good;
        value = -2; // the bytes are taken
        good = clEnqueueCopyBuffer(other, source, target, 0, round * sizeof value, sizeof value, 0, nullptr,
                                   nullptr) == CL_SUCCESS &&
               clFinish(other) == CL_SUCCESS && good;
    }
    CHECK(good);
    CHECK_BUT_FOR(s, "NVIDIA", content_of(s, target, rounds) == counting(rounds));
    for (cl_command_queue other : others)
        CHECK_CL(clReleaseCommandQueue(other));
    for (cl_mem memory : {busy, source, target})
        CHECK_CL(clReleaseMemObject(memory));
}

void rectangles(const setup& s) {
    // A buffer of 8 x 6 x 4 ints, of which a 3 x 2 x 2 block moves.
    const std::size_t width = 8, height = 6, depth = 4, row = width * sizeof(int), slice = row * height;
    const std::vector<int> numbers = counting(width * height * depth);
    cl_mem buffer = buffer_of(s, numbers);
    const std::size_t buffer_origin[3] = {2 * sizeof(int), 1, 1}, host_origin[3] = {sizeof(int), 2, 0};
    const std::size_t region[3] = {3 * sizeof(int), 2, 2};
    const std::size_t host_row = 5 * sizeof(int), host_slice = host_row * 5;
    std::vector<int> host(5 * 5 * 3, -1);
    CHECK_CL(clEnqueueReadBufferRect(s.queue, buffer, CL_TRUE, buffer_origin, host_origin, region, row, slice,
                                     host_row, host_slice, host.data(), 0, nullptr, nullptr));
    std::vector<int> expected(host.size(), -1);
    for (std::size_t z = 0; z < 2; ++z)
        for (std::size_t y = 0; y < 2; ++y)
            for (std::size_t x = 0; x < 3; ++x)
                expected[z * 25 + (y + 2) * 5 + x + 1] =
                    numbers[(z + 1) * width * height + (y + 1) * width + x + 2];
    CHECK(host == expected); // and what lies between the rows is untouched

    for (int& value : host)
        value = value < 0 ? -5 : value + 1000;
    CHECK_CL(clEnqueueWriteBufferRect(s.queue, buffer, CL_TRUE, buffer_origin, host_origin, region, row,
                                      slice, host_row, host_slice, host.data(), 0, nullptr, nullptr));
    std::vector<int> changed = numbers;
    for (std::size_t z = 0; z < 2; ++z)
        for (std::size_t y = 0; y < 2; ++y)
            for (std::size_t x = 0; x < 3; ++x)
                changed[(z + 1) * width * height + (y + 1) * width + x + 2] += 1000;
    CHECK(content_of(s, buffer, numbers.size()) == changed);

    cl_mem other = buffer_of(s, std::vector<int>(numbers.size(), 0));
    const std::size_t origin[3] = {0, 0, 0};
    CHECK_CL(clEnqueueCopyBufferRect(s.queue, buffer, other, buffer_origin, origin, region, row, slice, row,
                                     slice, 0, nullptr, nullptr));
    const std::vector<int> copied = content_of(s, other, numbers.size());
    CHECK(copied[0] == changed[width * height + width + 2] &&
          copied[width + 2] == changed[width * height + 2 * width + 4]);
    // NVIDIA: copies.
    const cl_int overlap = clEnqueueCopyBufferRect(s.queue, buffer, buffer, buffer_origin, buffer_origin,
                                                   region, row, slice, row, slice, 0, nullptr, nullptr);
    CHECK_BUT_FOR(s, "NVIDIA", overlap == CL_MEM_COPY_OVERLAP);
    CHECK_ERROR(CL_INVALID_VALUE,
                clEnqueueReadBufferRect(s.queue, buffer, CL_TRUE, buffer_origin, host_origin, region, 4,
                                        slice, host_row, host_slice, host.data(), 0, nullptr, nullptr));
    CHECK_CL(clReleaseMemObject(buffer));
    CHECK_CL(clReleaseMemObject(other));
}

namespace {

void map_round(const setup& s, cl_mem buffer, std::size_t count) {
    cl_int error = CL_SUCCESS;
    const std::vector<int> before = content_of(s, buffer, count);
    auto* read = static_cast<int*>(clEnqueueMapBuffer(s.queue, buffer, CL_TRUE, CL_MAP_READ, 0,
                                                      count * sizeof(int), 0, nullptr, nullptr, &error));
    CHECK_CL(error);
    CHECK(read && std::memcmp(read, before.data(), count * sizeof(int)) == 0);
    cl_uint maps = 0;
    CHECK_CL(clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof maps, &maps, nullptr));
    CHECK(maps == 1);
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, buffer, read, 0, nullptr, nullptr));

    // Part of it for writing: what is not written stays.
    auto* write =
        static_cast<int*>(clEnqueueMapBuffer(s.queue, buffer, CL_TRUE, CL_MAP_WRITE, 10 * sizeof(int),
                                             20 * sizeof(int), 0, nullptr, nullptr, &error));
    CHECK_CL(error);
    write[3] = 4711;
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, buffer, write, 0, nullptr, nullptr));
    std::vector<int> expected = before;
    expected[13] = 4711;
    CHECK(content_of(s, buffer, count) == expected);

    auto* fresh =
        static_cast<int*>(clEnqueueMapBuffer(s.queue, buffer, CL_FALSE, CL_MAP_WRITE_INVALIDATE_REGION, 0,
                                             count * sizeof(int), 0, nullptr, nullptr, &error));
    CHECK_CL(error);
    CHECK_CL(clFinish(s.queue));
    for (std::size_t i = 0; i < count; ++i)
        fresh[i] = static_cast<int>(3 * i);
    cl_event done = nullptr;
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, buffer, fresh, 0, nullptr, &done));
    CHECK_CL(clWaitForEvents(1, &done));
    CHECK_CL(clReleaseEvent(done));
    const std::vector<int> after = content_of(s, buffer, count);
    CHECK(after[0] == 0 && after[count - 1] == static_cast<int>(3 * (count - 1)));
}

} // namespace

void maps(const setup& s) {
    const std::size_t count = 5000;
    cl_mem plain = buffer_of(s, counting(count));
    map_round(s, plain, count);
    cl_mem host_allocated = buffer_of(s, counting(count), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR);
    map_round(s, host_allocated, count);

    std::vector<int> mine = counting(count, 9);
    cl_int error = CL_SUCCESS;
    cl_mem in_place = clCreateBuffer(s.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, count * sizeof(int),
                                     mine.data(), &error);
    CHECK_CL(error);
    void* pointer = clEnqueueMapBuffer(s.queue, in_place, CL_TRUE, CL_MAP_READ, 8 * sizeof(int), 64, 0,
                                       nullptr, nullptr, &error);
    CHECK_CL(error);
    CHECK(pointer == mine.data() + 8);
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, in_place, pointer, 0, nullptr, nullptr));
    CHECK_CL(clFinish(s.queue));
    map_round(s, in_place, count);

    // Two maps that overlap, both for reading.
    void* a = clEnqueueMapBuffer(s.queue, plain, CL_TRUE, CL_MAP_READ, 0, 400, 0, nullptr, nullptr, &error);
    CHECK_CL(error);
    void* b = clEnqueueMapBuffer(s.queue, plain, CL_TRUE, CL_MAP_READ, 200, 400, 0, nullptr, nullptr, &error);
    CHECK_CL(error);
    CHECK(std::memcmp(static_cast<char*>(a) + 200, b, 200) == 0);
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, plain, a, 0, nullptr, nullptr));
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, plain, b, 0, nullptr, nullptr));
    CHECK_CL(clFinish(s.queue));
    int nothing = 0;
    CHECK_ERROR(CL_INVALID_VALUE, clEnqueueUnmapMemObject(s.queue, plain, &nothing, 0, nullptr, nullptr));
    CHECK_CL(clReleaseMemObject(plain));
    CHECK_CL(clReleaseMemObject(host_allocated));
    CHECK_CL(clReleaseMemObject(in_place));
}

// A buffer that kernels only read, mapped again and again, also behind what changes it otherwise. In a context of its
// own, with one queue: then a driver may know what it shows, and read nothing.
void maps_of_what_kernels_read(const setup& s) {
    setup own = s;
    cl_int error = CL_SUCCESS;
    own.context = clCreateContext(nullptr, 1, &s.device, nullptr, nullptr, &error);
    CHECK_CL(error);
    own.queue = clCreateCommandQueue(own.context, s.device, 0, &error);
    CHECK_CL(error);
    cl_program program = build(own, "kernel void twice(global const int* from, global int* to)"
                                    "{ to[get_global_id(0)] = 2 * from[get_global_id(0)]; }");
    cl_kernel kernel = kernel_of(program, "twice");
    const std::size_t count = 3000;
    std::vector<int> expected(count, 0);
    cl_mem from = clCreateBuffer(own.context, CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR, count * sizeof(int),
                                 nullptr, &error);
    CHECK_CL(error);
    cl_mem to = buffer_of(own, expected);
    CHECK_CL(clEnqueueWriteBuffer(own.queue, from, CL_TRUE, 0, count * sizeof(int), expected.data(), 0,
                                  nullptr, nullptr));
    CHECK_CL(clSetKernelArg(kernel, 0, sizeof from, &from));
    CHECK_CL(clSetKernelArg(kernel, 1, sizeof to, &to));
    bool shows = true, arrives = true;
    for (int round = 1; round <= 30; ++round) {
        if (round % 10 == 0) {
            CHECK_CL(clEnqueueFillBuffer(own.queue, from, &round, sizeof round, 0, count * sizeof(int) / 2, 0,
                                         nullptr, nullptr));
            std::fill(expected.begin(), expected.begin() + count / 2, round);
        }
        auto* view =
            static_cast<int*>(clEnqueueMapBuffer(own.queue, from, CL_TRUE, CL_MAP_WRITE | CL_MAP_READ, 0,
                                                 count * sizeof(int), 0, nullptr, nullptr, &error));
        if (error != CL_SUCCESS)
            break;
        shows = shows && std::equal(expected.begin(), expected.end(), view);
        for (std::size_t i = static_cast<std::size_t>(round); i < count; i += 7)
            view[i] = expected[i] = static_cast<int>(i) * round;
        error = clEnqueueUnmapMemObject(own.queue, from, view, 0, nullptr, nullptr);
        if (error == CL_SUCCESS)
            error =
                clEnqueueNDRangeKernel(own.queue, kernel, 1, nullptr, &count, nullptr, 0, nullptr, nullptr);
        if (error != CL_SUCCESS)
            break;
        std::vector<int> doubled = expected;
        for (int& one : doubled)
            one *= 2;
        arrives = arrives && content_of(own, to, count) == doubled;
    }
    CHECK_CL(error);
    CHECK(shows);
    CHECK(arrives);
    for (cl_mem memory : {from, to})
        CHECK_CL(clReleaseMemObject(memory));
    CHECK_CL(clReleaseKernel(kernel));
    CHECK_CL(clReleaseProgram(program));
    CHECK_CL(clReleaseCommandQueue(own.queue));
    CHECK_CL(clReleaseContext(own.context));
}

} // namespace check
