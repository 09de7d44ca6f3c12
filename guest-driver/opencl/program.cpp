// SPDX-License-Identifier: GPL-2.0-or-later
//
// Programs: creation and state. program_build.cpp compiles and links, program_info.cpp answers queries.
#include "program.hpp"

#include "api.hpp"
#include "include_files.hpp"

#include <charconv>
#include <cstdlib>

namespace kagemusha::opencl {

program::program(ref<context> owner)
    : object(kind_of_class), owner_(std::move(owner)), id_(owner_->link().new_id()) {}

program::~program() {
    if (created_)
        owner_->link().destroy(VGPU_OBJECT_PROGRAM, id());
}

cl_int program::create(vgpu_program_kind kind, const void* content, std::size_t bytes) {
    if (bytes > VGPU_MAX_PROGRAM_BYTES)
        return CL_OUT_OF_HOST_MEMORY;
    auto command = make_command<commands::create_program>();
    command.id = id();
    command.context = owner_->id();
    command.kind = kind;
    const payload in_place{const_cast<void*>(content), bytes, false};
    const cl_int error =
        owner_->link().call(bytes <= max_inline_bytes ? make_outgoing(command, inlined(content, bytes))
                                                      : make_outgoing(command, in_place));
    created_ = error == CL_SUCCESS;
    return error;
}

cl_int program::include_files(std::string_view options, const std::vector<std::string>& embedded) {
    if (source_.empty())
        return CL_SUCCESS;
    const auto included = with_included_files(source_, options, embedded, read_regular_file);
    const std::string& wanted = included ? *included : source_;
    if (wanted == (sent_.empty() ? source_ : sent_))
        return CL_SUCCESS;
    const std::uint64_t before = id();
    id_.store(owner_->link().new_id(), std::memory_order_relaxed);
    const cl_int error = create(VGPU_PROGRAM_SOURCE, wanted.data(), wanted.size());
    if (error != CL_SUCCESS) {
        id_.store(before, std::memory_order_relaxed);
        created_ = true;
        return error;
    }
    owner_->link().destroy(VGPU_OBJECT_PROGRAM, before);
    sent_ = included ? *included : std::string();
    return CL_SUCCESS;
}

bool program::begin_build(std::string options) {
    const std::lock_guard held(mutex_);
    if (status_ == CL_BUILD_IN_PROGRESS || kernels_ > 0)
        return false;
    status_ = CL_BUILD_IN_PROGRESS;
    options_ = std::move(options);
    descriptions_.clear();
    return true;
}

void program::end_build(cl_build_status status) {
    const std::lock_guard held(mutex_);
    status_ = status;
}

cl_build_status program::build_status() {
    const std::lock_guard held(mutex_);
    return status_;
}

std::string program::options() {
    const std::lock_guard held(mutex_);
    return options_;
}

void program::attach_kernel() {
    const std::lock_guard held(mutex_);
    ++kernels_;
}

void program::detach_kernel() {
    const std::lock_guard held(mutex_);
    --kernels_;
}

std::shared_ptr<const kernel_description> program::describe(const std::string& kernel_name,
                                                            std::uint64_t kernel_id) {
    {
        const std::lock_guard held(mutex_);
        const auto found = descriptions_.find(kernel_name);
        if (found != descriptions_.end())
            return found->second;
    }
    auto fresh = ask_description(kernel_name, kernel_id);
    const std::lock_guard held(mutex_);
    if (fresh)
        descriptions_.emplace(kernel_name, fresh);
    return fresh;
}

std::shared_ptr<const kernel_description> program::ask_description(const std::string& kernel_name,
                                                                   std::uint64_t kernel_id) {
    connection& link = owner_->link();
    const auto about = [&](vgpu_info_subject subject, cl_uint name, std::uint64_t index = 0) {
        return question{subject, name, kernel_id, index};
    };
    const question first[] = {about(VGPU_INFO_KERNEL, CL_KERNEL_NUM_ARGS),
                              about(VGPU_INFO_KERNEL_WORK_GROUP, CL_KERNEL_WORK_GROUP_SIZE),
                              about(VGPU_INFO_KERNEL_WORK_GROUP, CL_KERNEL_COMPILE_WORK_GROUP_SIZE)};
    const std::vector<answer> basics = ask_all(link, first);
    const auto count = basics[0].as<cl_uint>();
    if (!count || *count > VGPU_MAX_ARGUMENTS)
        return nullptr;
    auto made = std::make_shared<kernel_description>();
    made->name = kernel_name;
    made->max_work_group = basics[1].as<std::size_t>().value_or(0);
    made->required_group = basics[2].as<std::array<std::size_t, 3>>().value_or(std::array<std::size_t, 3>{});

    std::vector<question> asked;
    for (cl_uint i = 0; i < *count; ++i) {
        asked.push_back(about(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_ADDRESS_QUALIFIER, i));
        asked.push_back(about(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_TYPE_NAME, i));
        asked.push_back(about(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_TYPE_QUALIFIER, i));
    }
    const std::vector<answer> answers = ask_all(link, asked);
    for (cl_uint i = 0; i < *count; ++i) {
        argument_description one;
        const auto address = answers[3 * i].as<cl_kernel_arg_address_qualifier>();
        const std::string type = answers[3 * i + 1].text();
        const auto qualifiers = answers[3 * i + 2].as<cl_kernel_arg_type_qualifier>();
        if (!address) {
            made->arguments.push_back(one); // decided by the value that is set
            continue;
        }
        // Images are in the global address space for some drivers and in the private one for others.
        if (type.starts_with("image") && type.find('*') == std::string::npos) {
            one.kind = argument_kind::memory;
            one.image = true;
        } else if (*address == CL_KERNEL_ARG_ADDRESS_GLOBAL || *address == CL_KERNEL_ARG_ADDRESS_CONSTANT) {
            one.kind = argument_kind::memory;
            one.reads_only = *address == CL_KERNEL_ARG_ADDRESS_CONSTANT ||
                             (qualifiers.value_or(0) & CL_KERNEL_ARG_TYPE_CONST) != 0;
        } else if (*address == CL_KERNEL_ARG_ADDRESS_LOCAL) {
            one.kind = argument_kind::local;
        } else if (type == "sampler_t") {
            one.kind = argument_kind::sampler;
        } else {
            one.kind = argument_kind::bytes;
            one.bytes = size_of_type(type);
        }
        made->arguments.push_back(one);
    }
    return made;
}

std::size_t size_of_type(std::string_view name) {
    if (name.starts_with("unsigned "))
        name.remove_prefix(9);
    struct scalar {
        std::string_view name;
        std::size_t bytes;
    };
    static constexpr scalar scalars[] = {{"char", 1},  {"uchar", 1},  {"short", 2}, {"ushort", 2},
                                         {"int", 4},   {"uint", 4},   {"long", 8},  {"ulong", 8},
                                         {"float", 4}, {"double", 8}, {"half", 2},  {"bool", 1}};
    const std::size_t digits = std::min(name.find_first_of("0123456789"), name.size());
    for (const scalar& one : scalars) {
        if (name.substr(0, digits) != one.name)
            continue;
        if (digits == name.size())
            return one.bytes;
        unsigned width = 0;
        const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), width);
        if (error != std::errc() || end != name.data() + name.size())
            return 0;
        switch (width) {
        case 2:
        case 4:
        case 8:
        case 16:
            return one.bytes * width;
        case 3:
            return one.bytes * 4;
        default:
            return 0;
        }
    }
    return 0;
}

namespace {

cl_program hand_out_new(context& owner, vgpu_program_kind kind, const std::string& content, cl_int* errcode) {
    ref<program> made = make_object<program>(ref<context>(&owner));
    if (!made)
        return fail<cl_program>(errcode, CL_OUT_OF_HOST_MEMORY);
    const cl_int error = made->create(kind, content.data(), content.size());
    if (error != CL_SUCCESS)
        return fail<cl_program>(errcode, error);
    if (kind == VGPU_PROGRAM_SOURCE)
        made->set_source(content);
    if (kind == VGPU_PROGRAM_IL)
        made->set_il(content);
    if (kind == VGPU_PROGRAM_BUILT_IN)
        made->end_build(CL_BUILD_SUCCESS);
    succeed(errcode);
    return hand_out<cl_program>(std::move(made));
}

// The device list of the functions that take one: it can only name the context's device.
cl_int check_devices(const context& owner, cl_uint count, const cl_device_id* devices) {
    if (!devices || count == 0)
        return CL_INVALID_VALUE;
    for (cl_uint i = 0; i < count; ++i)
        if (from_handle<device>(devices[i]) != &owner.gpu())
            return CL_INVALID_DEVICE;
    return CL_SUCCESS;
}

} // namespace

namespace api {

cl_program create_program_with_source(cl_context handle, cl_uint count, const char** strings,
                                      const size_t* lengths, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_program>(errcode, CL_INVALID_CONTEXT);
    if (count == 0 || !strings)
        return fail<cl_program>(errcode, CL_INVALID_VALUE);
    std::string source;
    for (cl_uint i = 0; i < count; ++i) {
        if (!strings[i])
            return fail<cl_program>(errcode, CL_INVALID_VALUE);
        if (lengths && lengths[i])
            source.append(strings[i], lengths[i]);
        else
            source.append(strings[i]);
    }
    return hand_out_new(*owner, VGPU_PROGRAM_SOURCE, source, errcode);
}

cl_program create_program_with_il(cl_context handle, const void* il, size_t bytes, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_program>(errcode, CL_INVALID_CONTEXT);
    if (owner->gpu().host_info(CL_DEVICE_IL_VERSION)->text().empty())
        return fail<cl_program>(errcode, CL_INVALID_OPERATION);
    if (!il || bytes == 0)
        return fail<cl_program>(errcode, CL_INVALID_VALUE);
    return hand_out_new(*owner, VGPU_PROGRAM_IL, std::string(static_cast<const char*>(il), bytes), errcode);
}

cl_program create_program_with_binary(cl_context handle, cl_uint count, const cl_device_id* devices,
                                      const size_t* lengths, const unsigned char** binaries,
                                      cl_int* binary_status, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_program>(errcode, CL_INVALID_CONTEXT);
    cl_int error = check_devices(*owner, count, devices);
    if (error != CL_SUCCESS || !lengths || !binaries)
        return fail<cl_program>(errcode, error != CL_SUCCESS ? error : CL_INVALID_VALUE);
    if (lengths[0] == 0 || !binaries[0]) {
        if (binary_status)
            binary_status[0] = CL_INVALID_VALUE;
        return fail<cl_program>(errcode, CL_INVALID_VALUE);
    }
    const std::string content(reinterpret_cast<const char*>(binaries[0]), lengths[0]);
    cl_program made = hand_out_new(*owner, VGPU_PROGRAM_BINARY, content, &error);
    if (binary_status)
        binary_status[0] = error == CL_SUCCESS || error == CL_INVALID_BINARY ? error : CL_SUCCESS;
    if (errcode)
        *errcode = error;
    return made;
}

cl_program create_program_with_built_in_kernels(cl_context handle, cl_uint count, const cl_device_id* devices,
                                                const char* names, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_program>(errcode, CL_INVALID_CONTEXT);
    const cl_int error = check_devices(*owner, count, devices);
    if (error != CL_SUCCESS || !names)
        return fail<cl_program>(errcode, error != CL_SUCCESS ? error : CL_INVALID_VALUE);
    if (owner->gpu().host_info(CL_DEVICE_BUILT_IN_KERNELS)->text().empty())
        return fail<cl_program>(errcode, CL_INVALID_VALUE); // there are none that could be named
    return hand_out_new(*owner, VGPU_PROGRAM_BUILT_IN, names, errcode);
}

cl_int retain_program(cl_program handle) {
    program* const one = from_handle<program>(handle);
    if (!one)
        return CL_INVALID_PROGRAM;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_program(cl_program handle) {
    program* const one = from_handle<program>(handle);
    return one && one->release_for_user() ? CL_SUCCESS : CL_INVALID_PROGRAM;
}

cl_int set_program_specialization_constant(cl_program handle, cl_uint constant, size_t bytes,
                                           const void* value) {
    program* const one = from_handle<program>(handle);
    if (!one)
        return CL_INVALID_PROGRAM;
    if (one->il().empty())
        return CL_INVALID_OPERATION;
    if (!value || bytes == 0 || bytes > 16)
        return CL_INVALID_VALUE;
    auto command = make_command<commands::set_spec_constant>();
    command.program = one->id();
    command.constant = constant;
    const std::span octets(static_cast<const std::byte*>(value), bytes);
    return one->owner().link().call(make_outgoing(command, octets));
}

cl_int set_program_release_callback(cl_program handle, void(CL_CALLBACK*)(cl_program, void*), void*) {
    // Deprecated in 2.2 already; an implementation without global destructors of programs has nothing to
    // call.
    return from_handle<program>(handle) ? CL_INVALID_OPERATION : CL_INVALID_PROGRAM;
}

} // namespace api
} // namespace kagemusha::opencl
