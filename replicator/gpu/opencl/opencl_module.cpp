// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_module: lists and opens the host's OpenCL devices.
#include <CL/cl.h>

#include <cstdio>

#include "base/fnv1a.hpp"
#include "gpu/opencl/opencl_device.hpp"
#include "gpu/own_selector.hpp"

namespace kagemusha::gpu {

namespace {

struct found {
    cl_platform_id platform;
    cl_device_id device;
    gpu_description description;
};

// Answers of OpenCL are text that ends with 0; some drivers pad names with spaces.
std::string text_of(const std::vector<std::byte>& bytes) {
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.resize(text.find('\0') == text.npos ? text.size() : text.find('\0'));
    const auto first = text.find_first_not_of(' ');
    const auto last = text.find_last_not_of(' ');
    return first == text.npos ? std::string() : text.substr(first, last - first + 1);
}

std::string ask_text(const opencl_api& api, cl_device_id device, cl_device_info name) {
    std::vector<std::byte> result;
    opencl_ask([&](std::size_t n, void* to,
                   std::size_t* size) { return api.clGetDeviceInfo(device, name, n, to, size); },
               result);
    return text_of(result);
}

std::string type_name(cl_device_type type) {
    if (type & CL_DEVICE_TYPE_GPU)
        return "GPU";
    if (type & CL_DEVICE_TYPE_ACCELERATOR)
        return "accelerator";
    return type & CL_DEVICE_TYPE_CPU ? "CPU" : "custom";
}

// Tells two GPUs of one make and driver from others in a log, nothing more.
std::string fingerprint_of(const gpu_description& d) {
    std::uint64_t hash = fnv1a("");
    for (const std::string* part : {&d.platform, &d.vendor, &d.name, &d.version, &d.driver_version})
        hash = fnv1a("\n", fnv1a(*part, hash));
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
    return text;
}

// "" for a GPU whose driver does not tell its place: it is not known again among fewer.
std::string own_selector_of(const opencl_api& api, cl_device_id device, const gpu_description& d) {
    if (d.type == "CPU")
        return processor_selector(d.device_index, d.platform);
    if (auto mig = mig_selector(d.name); !mig.empty())
        return mig;
    constexpr cl_device_info pci_bus_info_khr = 0x410f;
    cl_uint place[4]{}; // domain, bus, device, function
    std::size_t bytes = 0;
    if (api.clGetDeviceInfo(device, pci_bus_info_khr, sizeof place, place, &bytes) != CL_SUCCESS ||
        bytes != sizeof place)
        return {};
    return pci_selector({place[0], place[1], place[2], place[3]});
}

gpu_description describe_device(const opencl_api& api, const std::string& platform, cl_device_id device) {
    gpu_description d;
    d.platform = platform;
    d.name = ask_text(api, device, CL_DEVICE_NAME);
    d.vendor = ask_text(api, device, CL_DEVICE_VENDOR);
    d.version = ask_text(api, device, CL_DEVICE_VERSION);
    d.driver_version = ask_text(api, device, CL_DRIVER_VERSION);
    cl_device_type type = 0;
    api.clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof(type), &type, nullptr);
    d.type = type_name(type);
    cl_ulong memory = 0;
    api.clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(memory), &memory, nullptr);
    d.memory_bytes = memory;
    d.fingerprint = fingerprint_of(d);
    return d;
}

std::vector<found> find_all(const opencl_api& api) {
    std::vector<found> all;
    cl_uint platform_count = 0;
    if (api.clGetPlatformIDs(0, nullptr, &platform_count) != CL_SUCCESS)
        return all; // the loader's way to say that there is none
    std::vector<cl_platform_id> platforms(platform_count);
    if (platform_count == 0 || api.clGetPlatformIDs(platform_count, platforms.data(), nullptr) != CL_SUCCESS)
        return all;
    for (std::uint32_t p = 0; p < platform_count; ++p) {
        std::vector<std::byte> name;
        opencl_ask(
            [&](std::size_t n, void* to, std::size_t* size) {
                return api.clGetPlatformInfo(platforms[p], CL_PLATFORM_NAME, n, to, size);
            },
            name);
        cl_uint count = 0;
        if (api.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS ||
            count == 0)
            continue;
        std::vector<cl_device_id> devices(count);
        if (api.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr) !=
            CL_SUCCESS)
            continue;
        for (std::uint32_t d = 0; d < count; ++d) {
            found f{platforms[p], devices[d], describe_device(api, text_of(name), devices[d])};
            f.description.index = static_cast<std::uint32_t>(all.size());
            f.description.platform_index = p;
            f.description.device_index = d;
            f.description.own_selector = own_selector_of(api, devices[d], f.description);
            all.push_back(std::move(f));
        }
    }
    // PoCL, because it is on every machine and gives the same results on each; a real GPU is chosen by name.
    std::size_t pick = 0;
    for (std::size_t i = all.size(); i-- > 0;)
        if (all[i].description.platform == "Portable Computing Language")
            pick = i;
    if (!all.empty())
        all[pick].description.is_default = true;
    return all;
}

bool read_options(const backend_options& options, opencl_options& out, std::string& error) {
    for (const auto& [key, value] : options) {
        const std::string option = key + "=" + value;
        if (option == "transfer=auto")
            out.transfer = transfer_mode::automatic;
        else if (option == "transfer=pinned")
            out.transfer = transfer_mode::pinned;
        else if (option == "transfer=staging")
            out.transfer = transfer_mode::staging;
        else if (option == "transfer=direct")
            out.transfer = transfer_mode::direct;
        else if (option == "completion=auto")
            out.completion = completion_mode::automatic;
        else if (option == "completion=callback")
            out.completion = completion_mode::callback;
        else if (option == "completion=poll")
            out.completion = completion_mode::poll;
        else {
            error =
                "the opencl backend does not know the option '" + option +
                "'; it has transfer=auto, pinned, staging or direct and completion=auto, callback or poll";
            return false;
        }
    }
    return true;
}

class opencl_backend final : public backend_module {
public:
    std::string_view name() const override { return "opencl"; }

    std::vector<gpu_description> list(const backend_options& options, std::string& error) const override {
        std::vector<gpu_description> gpus;
        opencl_options chosen;
        const opencl_api* api = read_options(options, chosen, error) ? opencl_api::get(error) : nullptr;
        if (!api)
            return gpus;
        for (found& f : find_all(*api))
            gpus.push_back(std::move(f.description));
        if (gpus.empty())
            error = "OpenCL's loader is installed but no driver offers a device: install one "
                    "(Debian: apt install pocl-opencl-icd runs on any CPU; a GPU needs its vendor's OpenCL "
                    "package)";
        return gpus;
    }

    std::shared_ptr<backend_device> open(const gpu_description& gpu, const backend_options& options,
                                         std::string& error) const override {
        opencl_options chosen;
        const opencl_api* api = read_options(options, chosen, error) ? opencl_api::get(error) : nullptr;
        if (!api)
            return nullptr;
        for (found& f : find_all(*api))
            if (f.description.index == gpu.index && f.description.fingerprint == gpu.fingerprint)
                return std::make_shared<opencl_device>(*api, f.platform, f.device, std::move(f.description),
                                                       chosen);
        error = "the GPU '" + gpu.name + "' is gone: list the GPUs again with `kage gpus`";
        return nullptr;
    }
};

} // namespace

const backend_module& opencl_module() {
    static const opencl_backend module;
    return module;
}

} // namespace kagemusha::gpu
