// SPDX-License-Identifier: GPL-2.0-or-later
// host_reach: see host_reach.hpp.
//
// CUDA's numbers are in its documentation ("CUDA Driver API", Device Management); its library keeps them for
// programs of all versions. NVML's "Addressing Mode" would say the same, but not with drivers before 575.
#include "worker/host_reach.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

namespace {

constexpr int attribute_pageable = 88, attribute_host_page_tables = 100;
constexpr int cuda_no_device = 100;
constexpr std::size_t max_gpus = 256;
// The driver's start takes a second where it has to wake its GPUs.
constexpr int answer_limit_ms = 60000;

struct answer_head {
    std::int32_t result; // 0, a CUresult, or no_library
    std::uint32_t count;
};
constexpr std::int32_t no_library = -1;

bool write_bytes(int fd, const void* bytes, std::size_t size) {
    return write(fd, bytes, size) == static_cast<ssize_t>(size); // a pipe takes so little at once
}

// In the process of its own.
void ask_cuda(int out) {
    answer_head head{no_library, 0};
    std::vector<gpu_reach> gpus;
    if (void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
        const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
        const auto count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
        const auto device = reinterpret_cast<int (*)(int*, int)>(dlsym(library, "cuDeviceGet"));
        const auto name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(library, "cuDeviceGetName"));
        const auto attribute =
            reinterpret_cast<int (*)(int*, int, int)>(dlsym(library, "cuDeviceGetAttribute"));
        if (init && count && device && name && attribute) {
            int found = 0;
            head.result = init(0);
            if (head.result == 0)
                head.result = count(&found);
            for (int i = 0; head.result == 0 && i < found && gpus.size() < max_gpus; ++i) {
                gpu_reach gpu{};
                int handle = 0, pageable = 1, tables = 0;
                head.result = device(&handle, i);
                if (head.result == 0)
                    head.result = attribute(&pageable, attribute_pageable, handle);
                if (head.result == 0)
                    head.result = attribute(&tables, attribute_host_page_tables, handle);
                gpu.pageable = pageable != 0;
                gpu.host_page_tables = tables != 0;
                name(gpu.name, sizeof gpu.name - 1, handle);
                gpus.push_back(gpu);
            }
            if (head.result == cuda_no_device)
                head.result = 0;
        }
    }
    head.count = static_cast<std::uint32_t>(gpus.size());
    if (write_bytes(out, &head, sizeof head))
        for (const gpu_reach& gpu : gpus)
            if (!write_bytes(out, &gpu, sizeof gpu))
                break;
}

bool read_bytes(int fd, void* into, std::size_t size, std::chrono::steady_clock::time_point end) {
    auto* at = static_cast<char*>(into);
    while (size != 0) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        pollfd ready{fd, POLLIN, 0};
        const int got_ready = left.count() <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left.count()));
        if (got_ready < 0 && errno == EINTR)
            continue;
        const ssize_t got = got_ready == 1 ? read(fd, at, size) : 0;
        if (got <= 0)
            return false;
        at += got;
        size -= static_cast<std::size_t>(got);
    }
    return true;
}

void ask_in_a_process(reach_facts& facts) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        facts.not_answered = std::strerror(errno);
        return;
    }
    const unique_fd in(ends[0]);
    unique_fd out(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
        ask_cuda(out.get());
        _exit(0);
    }
    out.reset();
    answer_head head{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(answer_limit_ms);
    std::vector<gpu_reach> gpus;
    bool complete = child > 0 && read_bytes(in.get(), &head, sizeof head, end) && head.count <= max_gpus;
    for (std::uint32_t i = 0; complete && i < head.count; ++i) {
        complete = read_bytes(in.get(), &gpus.emplace_back(), sizeof(gpu_reach), end);
        gpus.back().name[sizeof gpus.back().name - 1] = '\0';
    }
    if (child > 0) {
        kill(child, SIGKILL); // it has said what it had to say, or never will
        waitpid(child, nullptr, 0);
    }
    if (!complete)
        facts.not_answered = "libcuda did not answer";
    else if (head.result == no_library)
        facts.not_answered = "there is no libcuda.so.1";
    else if (head.result != 0)
        facts.not_answered = "libcuda answered with error " + std::to_string(head.result);
    else
        facts.gpus = std::move(gpus);
}

} // namespace

reach_decision decide_reach(const reach_facts& facts) {
    if (!facts.nvidia)
        return {};
    if (facts.gpus) {
        for (const gpu_reach& gpu : *facts.gpus) {
            if (gpu.pageable == 0)
                continue;
            const std::string name(gpu.name);
            return {reach::all_memory,
                    name + " can use all memory of a process (" +
                        (gpu.host_page_tables != 0
                             ? "ATS: it walks the processor's page tables), which this machine can't "
                               "switch off: a kernel could reach the whole guest. Use another GPU"
                             : "HMM), so a kernel could reach the whole guest. Load NVIDIA's module with "
                               "HMM off: options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d")};
        }
        return {};
    }
    if (facts.hmm_disabled.value_or(false))
        return {};
    return {reach::unknown, "whether kernels can use all memory of a process is not known, because " +
                                facts.not_answered +
                                ": see 'Addressing Mode' of nvidia-smi -q, which must be None"};
}

reach_facts ask_host(const std::string& root) {
    reach_facts facts;
    facts.nvidia = access((root + "/dev/nvidiactl").c_str(), F_OK) == 0;
    if (!facts.nvidia)
        return facts;
    const unique_fd parameter(
        open((root + "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").c_str(), O_RDONLY | O_CLOEXEC));
    char value = 0;
    if (parameter && read(parameter.get(), &value, 1) == 1)
        facts.hmm_disabled = value == 'Y' || value == '1';
    ask_in_a_process(facts);
    return facts;
}

} // namespace kagemusha::worker
