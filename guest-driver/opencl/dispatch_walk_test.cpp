// SPDX-License-Identifier: GPL-2.0-or-later
//
// Every slot of the dispatch table is called with arguments that no sensible program gives: nothing at all,
// handles that point at anything, handles of another kind, of objects that are gone, and right handles with
// absurd numbers. Each answers with an error of the standard, the one of its first handle where that is what
// is wrong, and the driver works afterwards.
#include "test_fixture.hpp"

#include <set>
#include <string>
#include <tuple>

namespace kagemusha::opencl {
namespace {

enum class given { nothing, garbage, wrong_kind, released, right_and_zeros, right_and_huge };

// What the walk hands over for each kind of handle.
struct handles {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_mem memory;
    cl_sampler sampler;
    cl_program program;
    cl_kernel kernel;
    cl_event event;
};

struct outcome {
    bool called = false;
    cl_int error = CL_SUCCESS; // returned, or in errcode_ret
    bool gave_pointer = false;
    cl_int expected = CL_SUCCESS; // of its first handle; CL_SUCCESS: it has none
};

template <class Handle>
struct handle_kind : std::false_type {};

template <auto Member, cl_int Error>
struct handle_kind_of : std::true_type {
    static auto right(const handles& all) { return all.*Member; }
    static constexpr cl_int error = Error;
};

// clang-format off
template <> struct handle_kind<cl_platform_id> : handle_kind_of<&handles::platform, CL_INVALID_PLATFORM> {};
template <> struct handle_kind<cl_device_id> : handle_kind_of<&handles::device, CL_INVALID_DEVICE> {};
template <> struct handle_kind<cl_context> : handle_kind_of<&handles::context, CL_INVALID_CONTEXT> {};
template <> struct handle_kind<cl_command_queue> : handle_kind_of<&handles::queue, CL_INVALID_COMMAND_QUEUE> {};
template <> struct handle_kind<cl_mem> : handle_kind_of<&handles::memory, CL_INVALID_MEM_OBJECT> {};
template <> struct handle_kind<cl_sampler> : handle_kind_of<&handles::sampler, CL_INVALID_SAMPLER> {};
template <> struct handle_kind<cl_program> : handle_kind_of<&handles::program, CL_INVALID_PROGRAM> {};
template <> struct handle_kind<cl_kernel> : handle_kind_of<&handles::kernel, CL_INVALID_KERNEL> {};
template <> struct handle_kind<cl_event> : handle_kind_of<&handles::event, CL_INVALID_EVENT> {};
// clang-format on

// The arguments of one call, as `what` says.
class argument_maker {
public:
    argument_maker(given what, const handles& live, const handles& dead)
        : what_(what), live_(live), dead_(dead) {}

    template <class T>
    T make() {
        if constexpr (handle_kind<T>::value) {
            if (result_.expected == CL_SUCCESS)
                result_.expected = handle_kind<T>::error;
            switch (what_) {
            case given::nothing:
                return nullptr;
            case given::garbage:
                return reinterpret_cast<T>(garbage_);
            case given::wrong_kind:
                return std::is_same_v<T, cl_context> ? reinterpret_cast<T>(live_.queue)
                                                     : reinterpret_cast<T>(live_.context);
            case given::released:
                return handle_kind<T>::right(dead_);
            case given::right_and_zeros:
            case given::right_and_huge:
                return handle_kind<T>::right(live_);
            }
            return nullptr;
        } else if constexpr (std::is_same_v<T, cl_int*>) {
            return &result_.error; // errcode_ret, or binary_status, which is written as little
        } else if constexpr (std::is_integral_v<T>) {
            return what_ == given::right_and_huge ? static_cast<T>(~T{}) : T{};
        } else {
            static_assert(std::is_pointer_v<T>);
            return nullptr;
        }
    }

    outcome& result() { return result_; }

private:
    given what_;
    const handles& live_;
    const handles& dead_;
    outcome result_;
    alignas(64) std::byte garbage_[256]{};
};

template <class Result, class... Arguments>
outcome call(Result(CL_API_CALL* function)(Arguments...), argument_maker& maker) {
    std::tuple<Arguments...> arguments{maker.make<Arguments>()...}; // braces: from left to right
    outcome& result = maker.result();
    result.called = true;
    if constexpr (std::is_void_v<Result>)
        std::apply(function, arguments);
    else if constexpr (std::is_same_v<Result, cl_int>)
        result.error = std::apply(function, arguments);
    else
        result.gave_pointer = std::apply(function, arguments) != nullptr;
    return result;
}

struct slot {
    const char* name;
    outcome (*call)(const cl_icd_dispatch&, argument_maker&);
};

#define SLOT(function)                                                                                       \
    slot {                                                                                                   \
        #function,                                                                                           \
            [](const cl_icd_dispatch& table, argument_maker& maker) { return call(table.function, maker); }  \
    }

// In the order of the table; those of Direct3D, which are untyped there, follow by themselves.
const slot slots[] = {
    SLOT(clGetPlatformIDs),
    SLOT(clGetPlatformInfo),
    SLOT(clGetDeviceIDs),
    SLOT(clGetDeviceInfo),
    SLOT(clCreateContext),
    SLOT(clCreateContextFromType),
    SLOT(clRetainContext),
    SLOT(clReleaseContext),
    SLOT(clGetContextInfo),
    SLOT(clCreateCommandQueue),
    SLOT(clRetainCommandQueue),
    SLOT(clReleaseCommandQueue),
    SLOT(clGetCommandQueueInfo),
    SLOT(clSetCommandQueueProperty),
    SLOT(clCreateBuffer),
    SLOT(clCreateImage2D),
    SLOT(clCreateImage3D),
    SLOT(clRetainMemObject),
    SLOT(clReleaseMemObject),
    SLOT(clGetSupportedImageFormats),
    SLOT(clGetMemObjectInfo),
    SLOT(clGetImageInfo),
    SLOT(clCreateSampler),
    SLOT(clRetainSampler),
    SLOT(clReleaseSampler),
    SLOT(clGetSamplerInfo),
    SLOT(clCreateProgramWithSource),
    SLOT(clCreateProgramWithBinary),
    SLOT(clRetainProgram),
    SLOT(clReleaseProgram),
    SLOT(clBuildProgram),
    SLOT(clUnloadCompiler),
    SLOT(clGetProgramInfo),
    SLOT(clGetProgramBuildInfo),
    SLOT(clCreateKernel),
    SLOT(clCreateKernelsInProgram),
    SLOT(clRetainKernel),
    SLOT(clReleaseKernel),
    SLOT(clSetKernelArg),
    SLOT(clGetKernelInfo),
    SLOT(clGetKernelWorkGroupInfo),
    SLOT(clWaitForEvents),
    SLOT(clGetEventInfo),
    SLOT(clRetainEvent),
    SLOT(clReleaseEvent),
    SLOT(clGetEventProfilingInfo),
    SLOT(clFlush),
    SLOT(clFinish),
    SLOT(clEnqueueReadBuffer),
    SLOT(clEnqueueWriteBuffer),
    SLOT(clEnqueueCopyBuffer),
    SLOT(clEnqueueReadImage),
    SLOT(clEnqueueWriteImage),
    SLOT(clEnqueueCopyImage),
    SLOT(clEnqueueCopyImageToBuffer),
    SLOT(clEnqueueCopyBufferToImage),
    SLOT(clEnqueueMapBuffer),
    SLOT(clEnqueueMapImage),
    SLOT(clEnqueueUnmapMemObject),
    SLOT(clEnqueueNDRangeKernel),
    SLOT(clEnqueueTask),
    SLOT(clEnqueueNativeKernel),
    SLOT(clEnqueueMarker),
    SLOT(clEnqueueWaitForEvents),
    SLOT(clEnqueueBarrier),
    SLOT(clGetExtensionFunctionAddress),
    SLOT(clCreateFromGLBuffer),
    SLOT(clCreateFromGLTexture2D),
    SLOT(clCreateFromGLTexture3D),
    SLOT(clCreateFromGLRenderbuffer),
    SLOT(clGetGLObjectInfo),
    SLOT(clGetGLTextureInfo),
    SLOT(clEnqueueAcquireGLObjects),
    SLOT(clEnqueueReleaseGLObjects),
    SLOT(clGetGLContextInfoKHR),
    SLOT(clSetEventCallback),
    SLOT(clCreateSubBuffer),
    SLOT(clSetMemObjectDestructorCallback),
    SLOT(clCreateUserEvent),
    SLOT(clSetUserEventStatus),
    SLOT(clEnqueueReadBufferRect),
    SLOT(clEnqueueWriteBufferRect),
    SLOT(clEnqueueCopyBufferRect),
    SLOT(clCreateSubDevicesEXT),
    SLOT(clRetainDeviceEXT),
    SLOT(clReleaseDeviceEXT),
    SLOT(clCreateEventFromGLsyncKHR),
    SLOT(clCreateSubDevices),
    SLOT(clRetainDevice),
    SLOT(clReleaseDevice),
    SLOT(clCreateImage),
    SLOT(clCreateProgramWithBuiltInKernels),
    SLOT(clCompileProgram),
    SLOT(clLinkProgram),
    SLOT(clUnloadPlatformCompiler),
    SLOT(clGetKernelArgInfo),
    SLOT(clEnqueueFillBuffer),
    SLOT(clEnqueueFillImage),
    SLOT(clEnqueueMigrateMemObjects),
    SLOT(clEnqueueMarkerWithWaitList),
    SLOT(clEnqueueBarrierWithWaitList),
    SLOT(clGetExtensionFunctionAddressForPlatform),
    SLOT(clCreateFromGLTexture),
    SLOT(clCreateFromEGLImageKHR),
    SLOT(clEnqueueAcquireEGLObjectsKHR),
    SLOT(clEnqueueReleaseEGLObjectsKHR),
    SLOT(clCreateEventFromEGLSyncKHR),
    SLOT(clCreateCommandQueueWithProperties),
    SLOT(clCreatePipe),
    SLOT(clGetPipeInfo),
    SLOT(clSVMAlloc),
    SLOT(clSVMFree),
    SLOT(clEnqueueSVMFree),
    SLOT(clEnqueueSVMMemcpy),
    SLOT(clEnqueueSVMMemFill),
    SLOT(clEnqueueSVMMap),
    SLOT(clEnqueueSVMUnmap),
    SLOT(clCreateSamplerWithProperties),
    SLOT(clSetKernelArgSVMPointer),
    SLOT(clSetKernelExecInfo),
    SLOT(clGetKernelSubGroupInfoKHR),
    SLOT(clCloneKernel),
    SLOT(clCreateProgramWithIL),
    SLOT(clEnqueueSVMMigrateMem),
    SLOT(clGetDeviceAndHostTimer),
    SLOT(clGetHostTimer),
    SLOT(clGetKernelSubGroupInfo),
    SLOT(clSetDefaultDeviceCommandQueue),
    SLOT(clSetProgramReleaseCallback),
    SLOT(clSetProgramSpecializationConstant),
    SLOT(clCreateBufferWithProperties),
    SLOT(clCreateImageWithProperties),
    SLOT(clSetContextDestructorCallback),
};

// Untyped in the table: the arguments are those of the function that refuses, and go unread.
using untyped_function = cl_int (*)(void*, void*, void*, void*, void*, void*);

TEST_F(driver_test, every_slot_survives_every_argument) {
    constexpr std::size_t slot_count = sizeof(cl_icd_dispatch) / sizeof(void*);
    constexpr std::size_t untyped_count = 16;
    static_assert(std::size(slots) + untyped_count == slot_count, "a slot of the table is not walked");

    cl_int error = CL_SUCCESS;
    const auto make_all = [&](cl_context in, cl_command_queue where) {
        handles all{platform, device, in, where, nullptr, nullptr, nullptr, nullptr, nullptr};
        all.memory = cl.clCreateBuffer(in, CL_MEM_READ_WRITE, 64, nullptr, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        all.sampler = cl.clCreateSampler(in, CL_FALSE, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        const char* text = "source";
        all.program = cl.clCreateProgramWithSource(in, 1, &text, nullptr, &error);
        EXPECT_EQ(cl.clBuildProgram(all.program, 0, nullptr, "", nullptr, nullptr), CL_SUCCESS);
        all.kernel = cl.clCreateKernel(all.program, "copy", &error);
        EXPECT_EQ(error, CL_SUCCESS);
        EXPECT_EQ(cl.clEnqueueMarkerWithWaitList(where, 0, nullptr, &all.event), CL_SUCCESS);
        return all;
    };
    const handles live = make_all(context, queue);
    cl_context other_context = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    cl_command_queue other_queue = cl.clCreateCommandQueue(other_context, device, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    handles dead = make_all(other_context, other_queue);
    EXPECT_EQ(cl.clFinish(other_queue), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseEvent(dead.event), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseKernel(dead.kernel), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseProgram(dead.program), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseSampler(dead.sampler), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseMemObject(dead.memory), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseCommandQueue(other_queue), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseContext(other_context), CL_SUCCESS);
    // These two live as long as the process; a handle into the middle of one is as dead as it gets.
    dead.platform = reinterpret_cast<cl_platform_id>(reinterpret_cast<char*>(platform) + 8);
    dead.device = reinterpret_cast<cl_device_id>(reinterpret_cast<char*>(device) + 8);

    // Hints and answers that need nothing, and functions without an error to give.
    const std::set<std::string> may_succeed = {"clUnloadCompiler", "clSVMFree",
                                               "clGetExtensionFunctionAddress"};
    // With one platform, no platform means that one; then the number is what is wrong.
    const std::set<std::string> no_platform_is_the_only_one = {"clGetPlatformInfo", "clGetDeviceIDs"};
    // What it returns is a pointer alone.
    const std::set<std::string> without_error = {"clSVMAlloc", "clGetExtensionFunctionAddressForPlatform"};

    for (const given what : {given::nothing, given::garbage, given::wrong_kind, given::released,
                             given::right_and_zeros, given::right_and_huge})
        for (const slot& one : slots) {
            SCOPED_TRACE(std::string(one.name) + ", pass " + std::to_string(static_cast<int>(what)));
            argument_maker maker(what, live, dead);
            const outcome got = one.call(cl, maker);
            ASSERT_TRUE(got.called);
            ASSERT_LE(got.error, CL_SUCCESS);
            ASSERT_GT(got.error, -2000);
            if (what >= given::right_and_zeros || may_succeed.contains(one.name))
                continue; // whether it succeeds is its own matter
            EXPECT_FALSE(got.gave_pointer);
            if (without_error.contains(one.name))
                continue;
            EXPECT_NE(got.error, CL_SUCCESS);
            const bool platform_is_fine =
                what == given::nothing && no_platform_is_the_only_one.contains(one.name);
            if (got.expected != CL_SUCCESS && !platform_is_fine)
                EXPECT_EQ(got.error, got.expected);
        }

    std::size_t refused = 0;
    for (void* untyped : {cl.clGetDeviceIDsFromD3D10KHR, cl.clEnqueueAcquireD3D10ObjectsKHR,
                          cl.clEnqueueReleaseD3D10ObjectsKHR, cl.clGetDeviceIDsFromD3D11KHR,
                          cl.clEnqueueAcquireD3D11ObjectsKHR, cl.clEnqueueReleaseD3D11ObjectsKHR,
                          cl.clGetDeviceIDsFromDX9MediaAdapterKHR, cl.clEnqueueAcquireDX9MediaSurfacesKHR,
                          cl.clEnqueueReleaseDX9MediaSurfacesKHR}) {
        EXPECT_EQ(
            reinterpret_cast<untyped_function>(untyped)(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            CL_INVALID_OPERATION);
        ++refused;
    }
    for (void* untyped :
         {cl.clCreateFromD3D10BufferKHR, cl.clCreateFromD3D10Texture2DKHR, cl.clCreateFromD3D10Texture3DKHR,
          cl.clCreateFromD3D11BufferKHR, cl.clCreateFromD3D11Texture2DKHR, cl.clCreateFromD3D11Texture3DKHR,
          cl.clCreateFromDX9MediaSurfaceKHR}) {
        using create = cl_mem (*)(void*, void*, void*, void*, void*, void*);
        EXPECT_EQ(reinterpret_cast<create>(untyped)(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
                  nullptr);
        ++refused;
    }
    EXPECT_EQ(refused, untyped_count);

    // The driver still works.
    cl_mem buffer = make_buffer(64);
    int written = 42, read = 0;
    EXPECT_EQ(
        cl.clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof written, &written, 0, nullptr, nullptr),
        CL_SUCCESS);
    EXPECT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof read, &read, 0, nullptr, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(read, 42);
    EXPECT_EQ(cl.clReleaseMemObject(buffer), CL_SUCCESS);
}

} // namespace
} // namespace kagemusha::opencl
