// SPDX-License-Identifier: GPL-2.0-or-later
//
// The host's NVML (libnvidia-ml.so.1), opened by name when somebody asks for MIG. Only MIG needs it: which GPUs there
// are, OpenCL and CUDA tell. Used by one thread.
#pragma once

#include "control/mig/mig_facts.hpp"
#include "control/mig/mig_plan.hpp"

#include <memory>
#include <string>
#include <vector>

namespace kagemusha::control {

struct nvml_functions;

class nvml_library {
public:
    // "": the system's. Nothing and a sentence: it is not there, or too old for MIG, or its driver is not loaded.
    static std::unique_ptr<nvml_library> open(const std::string& path, std::string& error);
    ~nvml_library();
    nvml_library(const nvml_library&) = delete;
    nvml_library& operator=(const nvml_library&) = delete;

    // Empty and a sentence: the driver did not answer.
    std::vector<mig_gpu> read(std::string& error) const;

    // Carries out a plan up to the first action that fails; `done` says what was done, a line for each. "" or a
    // sentence.
    std::string apply(const mig_plan& plan, std::vector<std::string>& done) const;

private:
    nvml_library() = default;
    std::string apply(std::uint32_t gpu, const mig_action& action, std::string& did) const;

    void* library_ = nullptr;
    bool initialised_ = false;
    std::unique_ptr<nvml_functions> call_;
};

} // namespace kagemusha::control
