// SPDX-License-Identifier: GPL-2.0-or-later
//
// kagemusha_cl_check: an ordinary OpenCL program that uses every feature a program can, and checks each
// result. It knows nothing of Kagemusha: the same binary runs on a host's own OpenCL and in a guest, and must
// say the same. Output is TAP; the exit status is 0 when every point is ok.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#include <CL/cl.h>

#include <string>
#include <vector>

namespace check {

// One point of the plan. `what` says what is expected to hold.
bool ok(bool holds, const char* what, const char* file, int line);

// A call that must give this error code.
bool gives(cl_int expected, cl_int actual, const char* what, const char* file, int line);

// A point that this device cannot show.
void skip(const char* what, const char* why);

// A point where the runtime of one vendor is known not to do what the standard says. There it is counted as
// a deviation when it does not hold, and so the same natively and in a guest; everywhere else as a failure.
struct setup;
bool ok_but_for(const setup& s, const char* vendor, bool holds, const char* what, const char* file, int line);

#define CHECK_BUT_FOR(setup, vendor, condition)                                                              \
    check::ok_but_for((setup), (vendor), (condition), #condition, __FILE__, __LINE__)
#define CHECK(condition) check::ok((condition), #condition, __FILE__, __LINE__)
#define CHECK_CL(call) check::gives(CL_SUCCESS, (call), #call, __FILE__, __LINE__)
#define CHECK_ERROR(expected, call) check::gives((expected), (call), #call, __FILE__, __LINE__)

// Context, in-order queue and device that the groups share.
struct setup {
    cl_platform_id platform = nullptr;
    cl_device_id device = nullptr;
    cl_context context = nullptr;
    cl_command_queue queue = nullptr;
};

// Builds a program; on failure prints its log and returns null.
cl_program build(const setup& s, const std::string& source, const char* options = "");
cl_kernel kernel_of(cl_program program, const char* name);
cl_mem buffer_of(const setup& s, const std::vector<int>& content, cl_mem_flags flags = CL_MEM_READ_WRITE);
std::vector<int> content_of(const setup& s, cl_mem buffer, std::size_t count);
std::vector<int> counting(std::size_t count, int first = 0);

template <class T>
T device_number(const setup& s, cl_device_info name) {
    T value{};
    clGetDeviceInfo(s.device, name, sizeof value, &value, nullptr);
    return value;
}

std::string text_of(const setup& s, cl_device_info name);

void queries(const setup& s);
void buffers(const setup& s);
void through_program_memory(const setup& s);
void blocking_writes(const setup& s);
void maps_of_what_kernels_read(const setup& s);
void rectangles(const setup& s);
void maps(const setup& s);
void images(const setup& s);
void programs(const setup& s);
void binaries(const setup& s);
void kernels(const setup& s);
void events(const setup& s);
void queues(const setup& s);
void maps_beside_a_held_queue(const setup& s);
void errors(const setup& s);
void threads(const setup& s);
void printing(const setup& s);

} // namespace check
