// SPDX-License-Identifier: GPL-2.0-or-later
// sandbox: see sandbox.hpp.
#include "worker/sandbox.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "worker/folder_list.hpp"
#include "worker/landlock.hpp"
#include "worker/limits.hpp"
#include "worker/own_root.hpp"
#include "worker/syscall_filter.hpp"

namespace kagemusha::worker {

namespace {

std::string system_error(const std::string& what) {
    return what + ": " + std::strerror(errno);
}

bool write_file(const char* path, const std::string& text) {
    const unique_fd fd(open(path, O_WRONLY | O_CLOEXEC));
    return fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// The same numbers inside as outside: files keep their owners.
bool keep_identity(uid_t user, gid_t group) {
    const std::string users = std::to_string(user) + " " + std::to_string(user) + " 1";
    const std::string groups = std::to_string(group) + " " + std::to_string(group) + " 1";
    return write_file("/proc/self/uid_map", users) && write_file("/proc/self/setgroups", "deny") &&
           write_file("/proc/self/gid_map", groups);
}

void set_limit(int resource, rlim_t value) {
    rlimit limit{};
    if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0)
        return;
    limit.rlim_max = std::min(limit.rlim_max, value);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

struct visible_path {
    std::string path;
    file_access access;
};
using visible_paths = std::vector<visible_path>;

void add_folders_of(visible_paths& paths, const char* variable) {
    const char* value = std::getenv(variable);
    if (value == nullptr)
        return;
    for (std::string& folder : folder_list(value).absolute)
        paths.push_back({std::move(folder), file_access::read});
}

visible_paths system_files() {
    visible_paths paths;
    for (const char* path :
         {"/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/etc/ld.so.conf",
          "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/debian_version", "/etc/os-release"})
        paths.push_back({path, file_access::read});
    paths.push_back({"/dev/null", file_access::device});
    add_folders_of(paths, "LD_LIBRARY_PATH");
    return paths;
}

// All that a worker may use, but for its private directory.
visible_paths worker_files(const gpu_nodes& nodes) {
    visible_paths paths = system_files();
    for (const char* path :
         {"/etc/OpenCL", "/etc/nvidia", "/etc/drirc", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
          "/proc/stat", "/proc/devices", "/proc/modules", "/proc/version", "/proc/driver/nvidia",
          "/proc/sys/vm", "/proc/sys/kernel/pid_max", "/sys/devices/system/cpu", "/sys/devices/system/node",
          "/sys/devices/system/memory"})
        paths.push_back({path, file_access::read});
    add_folders_of(paths, "OCL_ICD_VENDORS");
    add_folders_of(paths, "OPENCL_VENDOR_PATH");
    for (const char* path : {"/dev/random", "/dev/urandom"})
        paths.push_back({path, file_access::device});
    // Mapped shared and writable it is memory that no limit counts, which only NVIDIA's runtime may have.
    paths.push_back({"/dev/zero", nodes.nvidia ? file_access::device : file_access::read});
    for (const std::string& path : nodes.devices)
        paths.push_back({path, file_access::device});
    // NVIDIA's CUDA driver names its threads there, and does not start when it can't (580). What else can be
    // written there is this process's own; a guest has no native code in a worker whose GPU is NVIDIA's.
    if (nodes.nvidia)
        paths.push_back({"/proc/self/task", file_access::rewrite});
    // Runtimes of real GPUs find them there. Without one, the worker has no business in it.
    if (std::ranges::any_of(nodes.devices,
                            [](const std::string& path) { return access(path.c_str(), F_OK) == 0; })) {
        for (const char* path : {"/sys/bus/pci", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module"})
            paths.push_back({path, file_access::read});
    }
    return paths;
}

} // namespace

void allow_system_files(landlock_rules& rules) {
    for (const visible_path& one : system_files())
        rules.allow(one.path, one.access);
}

std::string drop_capabilities() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    if (syscall(SYS_capset, &header, none) != 0)
        return system_error("capabilities can't be dropped");
    return "";
}

sandbox::sandbox(sandbox_mode mode, gpu_nodes nodes) : mode_(mode), nodes_(std::move(nodes)) {
    if (mode_ != sandbox_mode::off && !nodes_.problem.empty())
        missing_.push_back(nodes_.problem);
    if (mode_ != sandbox_mode::off)
        leave_folders_out();
}

// The linker beside the worker gets what is left, too.
void sandbox::leave_folders_out() {
    for (const char* variable : {"LD_LIBRARY_PATH", "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"}) {
        const char* value = std::getenv(variable);
        if (value == nullptr)
            continue;
        const folder_list list(value);
        if (list.left_out.empty())
            continue;
        if (*value != '\0')
            notes_.push_back(list.complaint(variable));
        if (list.absolute.empty())
            unsetenv(variable);
        else
            setenv(variable, list.text().c_str(), 1);
    }
}

void sandbox::isolate(std::uint64_t max_private_bytes) {
    if (mode_ == sandbox_mode::off)
        return;
    enter_namespaces();
    make_private_directory(max_private_bytes);
}

void sandbox::enter_namespaces() {
    const uid_t user = geteuid();
    const gid_t group = getegid();
    constexpr int wanted = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    if (unshare(CLONE_NEWUSER) == 0) {
        own_users_ = true;
        if (!keep_identity(user, group))
            missing_.push_back(system_error("identity in a user namespace"));
    } else {
        missing_.push_back(system_error("user namespace"));
    }
    // Without a user namespace these work only for root.
    if (unshare(wanted) == 0) {
        own_mounts_ = true;
    } else {
        if (unshare(CLONE_NEWNET) != 0)
            missing_.push_back(system_error("network namespace"));
        own_mounts_ = unshare(CLONE_NEWNS) == 0;
        if (!own_mounts_)
            missing_.push_back(system_error("mount namespace"));
        if (unshare(CLONE_NEWIPC | CLONE_NEWUTS) != 0)
            missing_.push_back(system_error("IPC namespace"));
    }
    if (own_mounts_ && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
        missing_.push_back(system_error("private mounts"));
        own_mounts_ = false;
    }
}

void sandbox::make_private_directory(std::uint64_t max_bytes) {
    if (own_mounts_) {
        std::vector<std::string> paths;
        for (visible_path& one : worker_files(nodes_))
            if (!own_processes_ || !one.path.starts_with("/proc/"))
                paths.push_back(std::move(one.path));
        if (own_processes_)
            paths.emplace_back("/proc");
        const std::string error = enter_own_root(paths, max_bytes);
        if (error.empty()) {
            directory_ = {own_root_directory, true};
            return;
        }
        missing_.push_back("own root: " + error);
        // In its own view of the file system the worker hides a directory that is always there and never
        // needed below a memory file system: it has a size, and nothing is left of it however the worker
        // ends.
        const std::string options = "mode=0700,nr_inodes=16384,size=" + std::to_string(max_bytes);
        for (const char* place : {"/mnt", "/media", "/srv"}) {
            if (mount("kagemusha", place, "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) == 0) {
                directory_ = {place, true};
                break;
            }
        }
    }
    if (directory_.path.empty())
        missing_.push_back("private file system in memory");
}

std::string sandbox::move_into(private_directory directory) {
    directory_ = std::move(directory);
    for (const char* variable :
         {"HOME", "TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
          "XDG_RUNTIME_DIR", "POCL_CACHE_DIR", "CUDA_CACHE_PATH", "NEO_CACHE_DIR", "MESA_SHADER_CACHE_DIR"})
        setenv(variable, directory_.path.c_str(), 1);
    if (chdir(directory_.path.c_str()) != 0)
        return system_error("the worker's private directory can't be entered");
    return "";
}

void sandbox::limit_resources(std::uint64_t max_worker_bytes) {
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_NOFILE, 4096);
    set_limit(RLIMIT_MSGQUEUE, 0);
    // Counted for each user namespace; elsewhere it would count everything of the user. Root is exempt.
    if (own_users_)
        set_limit(RLIMIT_NPROC, max_threads);
    set_limit(RLIMIT_FSIZE, private_directory_bytes);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    max_worker_bytes = 0; // sanitizers keep terabytes of private address space for themselves
#endif
    // Counted: heap, private writable mappings, stacks; not counted: guest memory, libraries' code.
    if (max_worker_bytes != 0)
        set_limit(RLIMIT_DATA, max_worker_bytes);
    // When the host runs out of memory, a worker is what it can spare first.
    if (!write_file("/proc/self/oom_score_adj", "800"))
        missing_.push_back(system_error("out-of-memory score"));
}

std::string sandbox::enter(std::uint64_t max_worker_bytes) {
    if (mode_ == sandbox_mode::off)
        return "";
    limit_resources(max_worker_bytes);

    landlock_rules rules;
    std::string error = rules.create();
    if (error.empty()) {
        for (const visible_path& one : worker_files(nodes_))
            rules.allow(one.path, one.access);
        rules.allow(directory_.path, file_access::write);
        error = rules.enforce();
    }
    if (!error.empty()) {
        if (mode_ == sandbox_mode::required)
            return "the sandbox is required, but " + error + " (sandbox=best-effort starts without it)";
        missing_.push_back(error);
    }

    // Other processes of the same user can't look into this one, and its core is nobody's.
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (error = drop_capabilities(); !error.empty())
        missing_.push_back(error);
    // Changing credentials clears this, so it comes late.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
        missing_.push_back(system_error("end with the device"));

    // The filter takes the network by itself: there is no socket() any more.
    if (error = enter_syscall_filter(filter_for::worker, nodes_.nvidia); !error.empty()) {
        if (mode_ == sandbox_mode::required)
            return "the sandbox is required, but " + error + " (sandbox=best-effort starts without it)";
        missing_.push_back(error);
    }
    return "";
}

} // namespace kagemusha::worker
