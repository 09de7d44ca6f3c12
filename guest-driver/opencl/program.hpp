// SPDX-License-Identifier: GPL-2.0-or-later
//
// Programs, and what is known about their kernels. The compiler is the host's; this side keeps the source,
// the state of the last build and, per kernel name, the argument list that tells which bytes of
// clSetKernelArg are handles.
#pragma once

#include "context.hpp"
#include "query.hpp"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::opencl {

enum class argument_kind { bytes, memory, sampler, local, unknown };

struct argument_description {
    argument_kind kind = argument_kind::unknown;
    std::size_t bytes = 0; // of a value of a known type, else 0
    bool image = false;
    bool reads_only = false; // a pointer to constant memory, or to a constant type
};

// Of one kernel of a built program; the same for all its kernel objects.
struct kernel_description {
    std::string name;
    std::vector<argument_description> arguments;
    std::size_t max_work_group = 0;              // 0: not known
    std::array<std::size_t, 3> required_group{}; // {0, 0, 0}: none
};

class program : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::program;

    explicit program(ref<context> owner);
    ~program();

    context& owner() const noexcept { return *owner_; }
    const ref<context>& owner_ref() const noexcept { return owner_; }
    std::uint64_t id() const noexcept { return id_.load(std::memory_order_relaxed); }

    // Makes it on the host from one piece of content.
    cl_int create(vgpu_program_kind kind, const void* content, std::size_t bytes);
    void set_created() noexcept { created_ = true; }

    // Gives the host the source as these options want it: with the included files in it. Between
    // begin_build() and end_build(). The program on the host is then another one, of another id.
    cl_int include_files(std::string_view options, const std::vector<std::string>& embedded);

    void set_source(std::string source) { source_ = std::move(source); }
    const std::string& source() const noexcept { return source_; }
    void set_il(std::string il) { il_ = std::move(il); }
    const std::string& il() const noexcept { return il_; }

    // Between the two the program is being built: nothing else may be built from it, and no kernel is
    // attached. False if that is so already.
    bool begin_build(std::string options);
    void end_build(cl_build_status status);

    cl_build_status build_status();
    std::string options();

    void attach_kernel();
    void detach_kernel();

    // The description of a kernel; asked once per build.
    std::shared_ptr<const kernel_description> describe(const std::string& kernel_name,
                                                       std::uint64_t kernel_id);

    using release_callback = void(CL_CALLBACK*)(cl_program, void*);

private:
    std::shared_ptr<const kernel_description> ask_description(const std::string& kernel_name,
                                                              std::uint64_t kernel_id);

    const ref<context> owner_;
    std::atomic<std::uint64_t> id_; // changes only while it is built
    bool created_ = false;
    std::string source_, il_;
    std::string sent_; // what the host has, when that is not source_

    std::mutex mutex_;
    cl_build_status status_ = CL_BUILD_NONE;
    std::string options_;
    unsigned kernels_ = 0;
    std::map<std::string, std::shared_ptr<const kernel_description>> descriptions_;
};

// Size of a value of this OpenCL C type, 0 if the name says nothing (a struct, a typedef of the program).
std::size_t size_of_type(std::string_view name);

} // namespace kagemusha::opencl
