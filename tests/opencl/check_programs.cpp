// SPDX-License-Identifier: GPL-2.0-or-later
//
// Programs and kernels: build, log, compile and link, binaries, arguments, launches, printf.
#include "check.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace check {
namespace {

const char* const arithmetic = R"(
typedef struct { int a; float b; short c; } triple;
kernel void add(global const int* a, global const int* b, global int* sum, int n) {
    size_t i = get_global_id(0);
    if (i < n) sum[i] = a[i] + b[i];
}
kernel void reversed(global int* data, local int* scratch) {
    size_t i = get_local_id(0), n = get_local_size(0);
    scratch[i] = data[get_group_id(0) * n + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    data[get_group_id(0) * n + i] = scratch[n - 1 - i];
}
kernel void mixed(global float* out, char c, float4 v, triple t, ulong big, constant int* table) {
    out[0] = c + v.x + v.w + t.a + t.b + t.c + (float)big + table[2];
}
kernel void is_null(global int* out, global int* perhaps) { out[0] = perhaps == 0; }
kernel __attribute__((reqd_work_group_size(4, 1, 1))) void four(global int* out) { out[get_global_id(0)] = get_local_size(0); }
kernel void where(global int* out) { out[get_global_id(1) * 3 + get_global_id(0) - 2] = get_global_offset(0) * 10 + get_work_dim(); }
)";

std::string log_of(const setup& s, cl_program program) {
    std::size_t size = 0;
    CHECK_CL(clGetProgramBuildInfo(program, s.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size));
    std::string log(size, 0);
    CHECK_CL(clGetProgramBuildInfo(program, s.device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr));
    return log;
}

cl_program source_program(const setup& s, const char* text) {
    cl_int error = CL_SUCCESS;
    cl_program made = clCreateProgramWithSource(s.context, 1, &text, nullptr, &error);
    CHECK_CL(error);
    return made;
}

void use_answer(const setup& s, cl_program program, int expected) {
    cl_kernel kernel = kernel_of(program, "answer");
    cl_mem out = buffer_of(s, {0});
    CHECK_CL(clSetKernelArg(kernel, 0, sizeof out, &out));
    CHECK_CL(clEnqueueTask(s.queue, kernel, 0, nullptr, nullptr));
    CHECK(content_of(s, out, 1)[0] == expected);
    CHECK_CL(clReleaseMemObject(out));
    CHECK_CL(clReleaseKernel(kernel));
}

void compile_and_link(const setup& s) {
    cl_program header = source_program(s, "#define NUMBER 41\nint plus_one(int);\n");
    cl_program main_part = source_program(
        s,
        "#include \"parts/number.h\"\nkernel void answer(global int* out) { out[0] = plus_one(NUMBER); }\n");
    cl_program library = source_program(s, "int plus_one(int n) { return n + 1; }\n");
    const char* name = "parts/number.h";
    CHECK_CL(clCompileProgram(main_part, 1, &s.device, "", 1, &header, &name, nullptr, nullptr));
    CHECK_CL(clCompileProgram(library, 0, nullptr, nullptr, 0, nullptr, nullptr, nullptr, nullptr));
    cl_program_binary_type type = 0;
    CHECK_CL(clGetProgramBuildInfo(library, s.device, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, nullptr));
    CHECK(type == CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT);
    const cl_program parts[] = {main_part, library};
    cl_int error = CL_SUCCESS;
    cl_program linked = clLinkProgram(s.context, 1, &s.device, "", 2, parts, nullptr, nullptr, &error);
    CHECK_CL(error);
    if (linked) {
        use_answer(s, linked, 42);
        CHECK_CL(clReleaseProgram(linked));
    }
    CHECK_CL(clReleaseProgram(header));
    CHECK_CL(clReleaseProgram(main_part));
    CHECK_CL(clReleaseProgram(library));
}

void write_file(const std::string& path, const char* text) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    CHECK(file != nullptr && std::fputs(text, file) >= 0 && std::fclose(file) == 0);
}

// Files of the machine that this program runs on: beside each other, by -I, and by a macro of the options.
void included_files(const setup& s) {
    char place[] = "/tmp/kagemusha_cl_check-XXXXXX";
    CHECK(mkdtemp(place) != nullptr);
    const std::string directory = place, number = directory + "/number.h", sum = directory + "/sum.h";
    const std::string options =
        "-I " + directory + " -D FOLDER=" + directory + " -D XTEXT(x)=#x -D TEXT(x)=XTEXT(x)";
    write_file(number, "#ifndef NUMBER\n#define NUMBER 30\n#endif\n");
    write_file(sum, "#include \"number.h\"\n#define SUM(n) (NUMBER + (n))");
    cl_program program = source_program(s, "#include <number.h>\n#include TEXT(FOLDER/sum.h)\n"
                                           "kernel void answer(global int* out) { out[0] = SUM(4); }\n");
    CHECK_CL(clBuildProgram(program, 1, &s.device, options.c_str(), nullptr, nullptr));
    use_answer(s, program, 34);
    // A later build sees what the files hold then.
    write_file(number, "#define NUMBER 50\n");
    CHECK_CL(clBuildProgram(program, 1, &s.device, (options + " -DLATER").c_str(), nullptr, nullptr));
    use_answer(s, program, 54);
    CHECK_CL(clCompileProgram(program, 1, &s.device, options.c_str(), 0, nullptr, nullptr, nullptr, nullptr));
    cl_int error = CL_SUCCESS;
    cl_program linked = clLinkProgram(s.context, 1, &s.device, "", 1, &program, nullptr, nullptr, &error);
    CHECK_CL(error);
    if (linked) {
        use_answer(s, linked, 54);
        CHECK_CL(clReleaseProgram(linked));
    }
    CHECK_CL(clReleaseProgram(program));

    program = source_program(
        s, "\n#include \"number.h\"\nkernel void answer(global int* out) { out[0] = nowhere; }\n");
    CHECK_ERROR(CL_BUILD_PROGRAM_FAILURE,
                clBuildProgram(program, 1, &s.device, options.c_str(), nullptr, nullptr));
    const std::string log = log_of(s, program);
    // The line of the mistake. NVIDIA's compiler does not follow #line, which a guest's driver needs to say
    // where the text of included files ends.
    CHECK_BUT_FOR(s, "NVIDIA", log.find(":3:") != std::string::npos);
    CHECK_CL(clReleaseProgram(program));
    for (const std::string& file : {number, sum})
        CHECK(std::remove(file.c_str()) == 0);
    CHECK(std::remove(place) == 0);
}

} // namespace

void programs(const setup& s) {
    cl_program built = build(s, "kernel void answer(global int* out) { out[0] = VALUE; }",
                             "-DVALUE=23 -cl-fast-relaxed-math");
    if (built) {
        use_answer(s, built, 23);
        std::size_t kernels = 0;
        char names[64] = "";
        CHECK_CL(clGetProgramInfo(built, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, nullptr));
        CHECK_CL(clGetProgramInfo(built, CL_PROGRAM_KERNEL_NAMES, sizeof names, names, nullptr));
        CHECK(kernels == 1 && std::strcmp(names, "answer") == 0);
        char options[64] = "";
        CHECK_CL(clGetProgramBuildInfo(built, s.device, CL_PROGRAM_BUILD_OPTIONS, sizeof options, options,
                                       nullptr));
        CHECK(std::strstr(options, "-DVALUE=23") != nullptr);
        cl_int error = CL_SUCCESS;
        CHECK(!clCreateKernel(built, "question", &error) && error == CL_INVALID_KERNEL_NAME);
        // A kernel keeps its program.
        cl_kernel kernel = kernel_of(built, "answer");
        CHECK_CL(clReleaseProgram(built));
        cl_program owner = nullptr;
        CHECK_CL(clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof owner, &owner, nullptr));
        CHECK(owner == built);
        CHECK_CL(clReleaseKernel(kernel));
    }

    cl_program broken =
        source_program(s, "kernel void answer(global int* out) { out[0] = undeclared_name; }");
    CHECK_ERROR(CL_BUILD_PROGRAM_FAILURE, clBuildProgram(broken, 1, &s.device, "", nullptr, nullptr));
    CHECK(log_of(s, broken).find("undeclared_name") != std::string::npos);
    cl_build_status status = CL_BUILD_NONE;
    CHECK_CL(
        clGetProgramBuildInfo(broken, s.device, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, nullptr));
    CHECK(status == CL_BUILD_ERROR);
    cl_int error = CL_SUCCESS;
    CHECK(!clCreateKernel(broken, "answer", &error) && error == CL_INVALID_PROGRAM_EXECUTABLE);
    CHECK_CL(clReleaseProgram(broken));

    static bool notified;
    notified = false;
    cl_program called = source_program(s, "kernel void answer(global int* out) { out[0] = 5; }");
    CHECK_CL(clBuildProgram(
        called, 1, &s.device, "", [](cl_program, void* data) { *static_cast<bool*>(data) = true; },
        &notified));
    for (int i = 0; i < 100000 && !notified; ++i) {
        cl_build_status now;
        clGetProgramBuildInfo(called, s.device, CL_PROGRAM_BUILD_STATUS, sizeof now, &now, nullptr);
    }
    CHECK(notified);
    CHECK_CL(clReleaseProgram(called));

    included_files(s);
    compile_and_link(s);
}

void binaries(const setup& s) {
    cl_program built = build(s, "kernel void answer(global int* out) { out[0] = 17; }");
    if (!built)
        return;
    std::size_t size = 0;
    CHECK_CL(clGetProgramInfo(built, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr));
    CHECK(size > 0);
    std::vector<unsigned char> binary(size);
    unsigned char* places[] = {binary.data()};
    CHECK_CL(clGetProgramInfo(built, CL_PROGRAM_BINARIES, sizeof places, places, nullptr));
    cl_int status = -1, error = CL_SUCCESS;
    const unsigned char* given[] = {binary.data()};
    cl_program again = clCreateProgramWithBinary(s.context, 1, &s.device, &size, given, &status, &error);
    CHECK_CL(error);
    CHECK_CL(status);
    if (again) {
        CHECK_CL(clBuildProgram(again, 1, &s.device, nullptr, nullptr, nullptr));
        use_answer(s, again, 17);
        CHECK_CL(clReleaseProgram(again));
    }
    CHECK_CL(clReleaseProgram(built));
}

void kernels(const setup& s) {
    cl_program program = build(s, arithmetic, "-cl-kernel-arg-info");
    if (!program)
        return;
    const std::size_t count = 512;
    const std::vector<int> numbers = counting(count);
    cl_mem a = buffer_of(s, numbers), b = buffer_of(s, counting(count, 1000)),
           sum = buffer_of(s, std::vector<int>(count, 0));
    cl_kernel add = kernel_of(program, "add");
    const int n = static_cast<int>(count);
    CHECK_ERROR(CL_INVALID_KERNEL_ARGS,
                clEnqueueNDRangeKernel(s.queue, add, 1, nullptr, &count, nullptr, 0, nullptr, nullptr));
    CHECK_CL(clSetKernelArg(add, 0, sizeof a, &a));
    CHECK_CL(clSetKernelArg(add, 1, sizeof b, &b));
    CHECK_CL(clSetKernelArg(add, 2, sizeof sum, &sum));
    CHECK_CL(clSetKernelArg(add, 3, sizeof n, &n));
    CHECK_ERROR(CL_INVALID_ARG_INDEX, clSetKernelArg(add, 4, sizeof n, &n));
    CHECK_ERROR(CL_INVALID_ARG_SIZE, clSetKernelArg(add, 3, 2, &n));
    CHECK_CL(clEnqueueNDRangeKernel(s.queue, add, 1, nullptr, &count, nullptr, 0, nullptr, nullptr));
    std::vector<int> result = content_of(s, sum, count);
    CHECK(result[0] == 1000 && result[count - 1] == static_cast<int>(1000 + 2 * (count - 1)));

    cl_uint arguments = 0;
    CHECK_CL(clGetKernelInfo(add, CL_KERNEL_NUM_ARGS, sizeof arguments, &arguments, nullptr));
    CHECK(arguments == 4);
    char type[32] = "", name[32] = "";
    cl_kernel_arg_address_qualifier address = 0;
    CHECK_CL(clGetKernelArgInfo(add, 2, CL_KERNEL_ARG_TYPE_NAME, sizeof type, type, nullptr));
    CHECK_CL(clGetKernelArgInfo(add, 2, CL_KERNEL_ARG_NAME, sizeof name, name, nullptr));
    CHECK_CL(clGetKernelArgInfo(add, 2, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof address, &address, nullptr));
    CHECK(std::strcmp(type, "int*") == 0 && std::strcmp(name, "sum") == 0 &&
          address == CL_KERNEL_ARG_ADDRESS_GLOBAL);

    cl_kernel reversed = kernel_of(program, "reversed");
    const std::size_t group = 16;
    CHECK_CL(clSetKernelArg(reversed, 0, sizeof a, &a));
    CHECK_CL(clSetKernelArg(reversed, 1, group * sizeof(int), nullptr));
    CHECK_CL(clEnqueueNDRangeKernel(s.queue, reversed, 1, nullptr, &count, &group, 0, nullptr, nullptr));
    result = content_of(s, a, count);
    CHECK(result[0] == 15 && result[15] == 0 && result[16] == 31);

    struct triple {
        int a;
        float b;
        short c;
    };
    cl_kernel mixed = kernel_of(program, "mixed");
    const signed char c = -3;
    const float v[4] = {1, 100, 100, 2};
    const triple t{10, 0.5f, 7};
    const cl_ulong big = 1000;
    cl_mem table = buffer_of(s, {1, 2, 4096});
    CHECK_CL(clSetKernelArg(mixed, 0, sizeof sum, &sum));
    CHECK_CL(clSetKernelArg(mixed, 1, sizeof c, &c));
    CHECK_CL(clSetKernelArg(mixed, 2, sizeof v, v));
    CHECK_CL(clSetKernelArg(mixed, 3, sizeof t, &t));
    CHECK_CL(clSetKernelArg(mixed, 4, sizeof big, &big));
    CHECK_CL(clSetKernelArg(mixed, 5, sizeof table, &table));
    CHECK_CL(clEnqueueTask(s.queue, mixed, 0, nullptr, nullptr));
    float total = 0;
    CHECK_CL(clEnqueueReadBuffer(s.queue, sum, CL_TRUE, 0, sizeof total, &total, 0, nullptr, nullptr));
    CHECK(total == -3 + 1 + 2 + 10 + 0.5f + 7 + 1000 + 4096);

    cl_kernel is_null = kernel_of(program, "is_null");
    CHECK_CL(clSetKernelArg(is_null, 0, sizeof sum, &sum));
    CHECK_CL(clSetKernelArg(is_null, 1, sizeof(cl_mem), nullptr));
    CHECK_CL(clEnqueueTask(s.queue, is_null, 0, nullptr, nullptr));
    CHECK(content_of(s, sum, 1)[0] == 1);

    cl_kernel four = kernel_of(program, "four");
    const std::size_t two = 2, required = 4;
    std::size_t compiled[3] = {};
    CHECK_CL(clGetKernelWorkGroupInfo(four, s.device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof compiled,
                                      compiled, nullptr));
    CHECK(compiled[0] == 4 && compiled[1] == 1);
    CHECK_CL(clSetKernelArg(four, 0, sizeof sum, &sum));
    CHECK_ERROR(CL_INVALID_WORK_GROUP_SIZE,
                clEnqueueNDRangeKernel(s.queue, four, 1, nullptr, &count, &two, 0, nullptr, nullptr));
    CHECK_CL(clEnqueueNDRangeKernel(s.queue, four, 1, nullptr, &count, &required, 0, nullptr, nullptr));
    CHECK(content_of(s, sum, count)[7] == 4);

    cl_kernel where = kernel_of(program, "where");
    const std::size_t offset[2] = {2, 0}, size[2] = {3, 2};
    CHECK_CL(clSetKernelArg(where, 0, sizeof sum, &sum));
    CHECK_CL(clEnqueueNDRangeKernel(s.queue, where, 2, offset, size, nullptr, 0, nullptr, nullptr));
    CHECK(content_of(s, sum, 6)[5] == 22);

    // Arguments are taken at the launch, not later.
    const int none = 0;
    CHECK_CL(clSetKernelArg(add, 0, sizeof b, &b));
    CHECK_CL(clEnqueueNDRangeKernel(s.queue, add, 1, nullptr, &count, nullptr, 0, nullptr, nullptr));
    CHECK_CL(clSetKernelArg(add, 3, sizeof none, &none));
    CHECK(content_of(s, sum, 1)[0] == 2000);

    cl_uint created = 0;
    CHECK_CL(clCreateKernelsInProgram(program, 0, nullptr, &created));
    CHECK(created == 6);
    std::vector<cl_kernel> all(created);
    CHECK_CL(clCreateKernelsInProgram(program, created, all.data(), nullptr));
    for (cl_kernel one : all)
        CHECK_CL(clReleaseKernel(one));
    for (cl_kernel one : {add, reversed, mixed, is_null, four, where})
        CHECK_CL(clReleaseKernel(one));
    for (cl_mem one : {a, b, sum, table})
        CHECK_CL(clReleaseMemObject(one));
    CHECK_CL(clReleaseProgram(program));
}

void printing(const setup& s) {
    // What arrives on stdout is for whoever compares the output; here it must only not fail.
    cl_program program = build(s, "kernel void greet(int n) { printf(\"# greetings from work-item %d of "
                                  "%d\\n\", (int)get_global_id(0), n); }");
    if (!program)
        return;
    cl_kernel kernel = kernel_of(program, "greet");
    const int n = 3;
    const std::size_t count = 3, one = 1;
    CHECK_CL(clSetKernelArg(kernel, 0, sizeof n, &n));
    CHECK_CL(clEnqueueNDRangeKernel(s.queue, kernel, 1, nullptr, &count, &one, 0, nullptr, nullptr));
    CHECK_CL(clFinish(s.queue));
    CHECK_CL(clReleaseKernel(kernel));
    CHECK_CL(clReleaseProgram(program));
}

} // namespace check
