// SPDX-License-Identifier: GPL-2.0-or-later
//
// Images and samplers, where the device has them.
#include "check.hpp"

#include <cstring>

namespace check {
namespace {

const char* const source = R"(
kernel void doubled(read_only image2d_t from, write_only image2d_t to, sampler_t how) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imageui(to, at, read_imageui(from, how, at) * 2u);
})";

cl_mem image_of(const setup& s, const cl_image_desc& description, void* content) {
    const cl_image_format format{CL_RGBA, CL_UNSIGNED_INT8};
    cl_int error = CL_SUCCESS;
    cl_mem made = clCreateImage(s.context, CL_MEM_READ_WRITE | (content ? CL_MEM_COPY_HOST_PTR : 0), &format,
                                &description, content, &error);
    CHECK_CL(error);
    return made;
}

void round_trip(const setup& s, cl_image_desc description, const std::size_t (&size)[3]) {
    std::vector<unsigned char> content(size[0] * size[1] * size[2] * 4);
    for (std::size_t i = 0; i < content.size(); ++i)
        content[i] = static_cast<unsigned char>(i * 7);
    cl_mem image = image_of(s, description, content.data());
    if (!image)
        return;
    const std::size_t origin[3] = {0, 0, 0};
    std::vector<unsigned char> back(content.size());
    CHECK_CL(
        clEnqueueReadImage(s.queue, image, CL_TRUE, origin, size, 0, 0, back.data(), 0, nullptr, nullptr));
    CHECK(back == content);

    cl_int error = CL_SUCCESS;
    std::size_t row = 0, slice = 0;
    auto* mapped = static_cast<unsigned char*>(clEnqueueMapImage(s.queue, image, CL_TRUE,
                                                                 CL_MAP_READ | CL_MAP_WRITE, origin, size,
                                                                 &row, &slice, 0, nullptr, nullptr, &error));
    CHECK_CL(error);
    if (mapped) {
        const bool layers = description.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
        const std::size_t last =
            (size[2] - 1) * slice + (size[1] - 1) * (layers ? slice : row) + (size[0] - 1) * 4;
        CHECK(mapped[last] == content[content.size() - 4]);
        mapped[last] = 200;
        CHECK_CL(clEnqueueUnmapMemObject(s.queue, image, mapped, 0, nullptr, nullptr));
        CHECK_CL(clEnqueueReadImage(s.queue, image, CL_TRUE, origin, size, 0, 0, back.data(), 0, nullptr,
                                    nullptr));
        content[content.size() - 4] = 200;
        CHECK(back == content);
    }

    cl_mem buffer = clCreateBuffer(s.context, CL_MEM_READ_WRITE, content.size(), nullptr, &error);
    // NVIDIA refuses copies between buffers and arrays of 1D images (CL_INVALID_VALUE). Whether a call says
    // so or the queue when it is finished is the implementation's choice.
    const char* const deviating =
        description.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? "NVIDIA" : "(nobody)";
    cl_int copied = clEnqueueCopyImageToBuffer(s.queue, image, buffer, origin, size, 0, 0, nullptr, nullptr);
    if (copied == CL_SUCCESS)
        copied = clFinish(s.queue);
    if (CHECK_BUT_FOR(s, deviating, copied == CL_SUCCESS)) {
        CHECK_CL(clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 0, content.size(), back.data(), 0, nullptr,
                                     nullptr));
        CHECK(back == content);
    }
    const cl_uint color[4] = {1, 2, 3, 4};
    CHECK_CL(clEnqueueFillImage(s.queue, image, color, origin, size, 0, nullptr, nullptr));
    CHECK_CL(
        clEnqueueReadImage(s.queue, image, CL_TRUE, origin, size, 0, 0, back.data(), 0, nullptr, nullptr));
    CHECK(back[0] == 1 && back[back.size() - 1] == 4);
    copied = clEnqueueCopyBufferToImage(s.queue, buffer, image, 0, origin, size, 0, nullptr, nullptr);
    if (copied == CL_SUCCESS)
        copied = clFinish(s.queue);
    CHECK_BUT_FOR(s, deviating, copied == CL_SUCCESS);
    CHECK_CL(clEnqueueWriteImage(s.queue, image, CL_TRUE, origin, size, 0, 0, content.data(), 0, nullptr,
                                 nullptr));
    CHECK_CL(
        clEnqueueReadImage(s.queue, image, CL_TRUE, origin, size, 0, 0, back.data(), 0, nullptr, nullptr));
    CHECK(back == content);
    CHECK_CL(clReleaseMemObject(buffer));
    CHECK_CL(clReleaseMemObject(image));
}

} // namespace

void images(const setup& s) {
    cl_int error = CL_SUCCESS;
    if (!device_number<cl_bool>(s, CL_DEVICE_IMAGE_SUPPORT)) {
        skip("images", "the device has none");
        const cl_image_format format{CL_RGBA, CL_UNSIGNED_INT8};
        cl_image_desc description{};
        description.image_type = CL_MEM_OBJECT_IMAGE2D;
        description.image_width = description.image_height = 4;
        CHECK(!clCreateImage(s.context, CL_MEM_READ_WRITE, &format, &description, nullptr, &error));
        CHECK(error == CL_INVALID_OPERATION);
        return;
    }
    cl_uint count = 0;
    CHECK_CL(
        clGetSupportedImageFormats(s.context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, nullptr, &count));
    CHECK(count > 0);

    cl_image_desc description{};
    description.image_width = 12;
    description.image_type = CL_MEM_OBJECT_IMAGE2D;
    description.image_height = 5;
    round_trip(s, description, {12, 5, 1});
    description.image_type = CL_MEM_OBJECT_IMAGE3D;
    description.image_depth = 3;
    round_trip(s, description, {12, 5, 3});
    description.image_depth = 0;
    description.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY;
    description.image_array_size = 3;
    round_trip(s, description, {12, 5, 3});
    description.image_height = 0;
    description.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY;
    round_trip(s, description, {12, 3, 1});
    description.image_array_size = 0;
    description.image_type = CL_MEM_OBJECT_IMAGE1D;
    round_trip(s, description, {12, 1, 1});

    // Large enough to be pinned instead of copied, and more than one request where the loopback's are small.
    cl_image_desc large{};
    large.image_width = 333;
    large.image_type = CL_MEM_OBJECT_IMAGE2D;
    large.image_height = 250;
    round_trip(s, large, {333, 250, 1});
    large.image_type = CL_MEM_OBJECT_IMAGE3D;
    large.image_height = 61;
    large.image_depth = 7;
    round_trip(s, large, {333, 61, 7});

    // A kernel that reads one image and writes another.
    description.image_type = CL_MEM_OBJECT_IMAGE2D;
    description.image_height = 5;
    std::vector<unsigned char> content(12 * 5 * 4, 21);
    cl_mem from = image_of(s, description, content.data()), to = image_of(s, description, nullptr);
    cl_sampler sampler =
        clCreateSampler(s.context, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, &error);
    CHECK_CL(error);
    cl_addressing_mode mode = 0;
    CHECK_CL(clGetSamplerInfo(sampler, CL_SAMPLER_ADDRESSING_MODE, sizeof mode, &mode, nullptr));
    CHECK(mode == CL_ADDRESS_CLAMP_TO_EDGE);
    cl_program program = build(s, source);
    if (program) {
        cl_kernel kernel = kernel_of(program, "doubled");
        CHECK_CL(clSetKernelArg(kernel, 0, sizeof from, &from));
        CHECK_CL(clSetKernelArg(kernel, 1, sizeof to, &to));
        CHECK_CL(clSetKernelArg(kernel, 2, sizeof sampler, &sampler));
        const std::size_t size[3] = {12, 5, 1}, origin[3] = {0, 0, 0};
        CHECK_CL(clEnqueueNDRangeKernel(s.queue, kernel, 2, nullptr, size, nullptr, 0, nullptr, nullptr));
        CHECK_CL(clEnqueueReadImage(s.queue, to, CL_TRUE, origin, size, 0, 0, content.data(), 0, nullptr,
                                    nullptr));
        CHECK(content[0] == 42 && content.back() == 42);
        CHECK_CL(clReleaseKernel(kernel));
        CHECK_CL(clReleaseProgram(program));
    }
    const std::size_t origin[3] = {0, 0, 0}, outside[3] = {13, 1, 1};
    CHECK_ERROR(CL_INVALID_VALUE, clEnqueueReadImage(s.queue, to, CL_TRUE, origin, outside, 0, 0,
                                                     content.data(), 0, nullptr, nullptr));
    CHECK_CL(clReleaseSampler(sampler));
    CHECK_CL(clReleaseMemObject(from));
    CHECK_CL(clReleaseMemObject(to));
}

} // namespace check
