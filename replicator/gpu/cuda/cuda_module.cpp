// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_module: lists and opens the devices of a CUDA driver library.
#include <cstdio>

#include "gpu/cuda/cuda_device.hpp"
#include "gpu/own_selector.hpp"

namespace kagemusha::gpu {

namespace {

bool read_options(const backend_options& options, std::string& path, std::string& error) {
    path = "libcuda.so.1";
    for (const auto& [key, value] : options) {
        if (key != "driver" || value.empty()) {
            error =
                "the cuda backend does not know the option '" + key + "=" + value + "'; it has driver=PATH";
            return false;
        }
        path = value;
    }
    return true;
}

std::string hexadecimal(const CUuuid& uuid) {
    std::string text;
    char two[3];
    for (const char octet : uuid.bytes) {
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(octet));
        text += two;
    }
    return text;
}

int attribute(const cuda_api& api, CUdevice device, CUdevice_attribute which) {
    int value = 0;
    return api.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

gpu_description describe_device(const cuda_api& api, CUdevice device, std::uint32_t index) {
    gpu_description d;
    char name[256] = {};
    api.cuDeviceGetName(name, sizeof name - 1, device);
    CUuuid uuid{};
    api.cuDeviceGetUuid(&uuid, device);
    std::size_t bytes = 0;
    api.cuDeviceTotalMem_v2(&bytes, device);
    int version = 0;
    api.cuDriverGetVersion(&version);
    d.index = d.device_index = index;
    d.platform = "CUDA";
    d.name = name;
    d.vendor = "CUDA";
    d.type = "GPU";
    d.memory_bytes = bytes;
    d.version = "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    d.driver_version = std::to_string(version);
    d.fingerprint = hexadecimal(uuid).substr(0, 16);
    d.is_default = index == 0;
    const int bus = attribute(api, device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    const int slot = attribute(api, device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    const int domain = attribute(api, device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    if (const auto mig = mig_selector(d.name); !mig.empty())
        d.own_selector = mig;
    else if (bus > 0 || slot > 0)
        d.own_selector = pci_selector({static_cast<std::uint32_t>(domain), static_cast<std::uint32_t>(bus),
                                       static_cast<std::uint32_t>(slot), 0});
    else
        d.own_selector = processor_selector(index, d.platform);
    return d;
}

class cuda_backend final : public backend_module {
public:
    std::string_view name() const override { return "cuda"; }

    std::vector<gpu_description> list(const backend_options& options, std::string& error) const override {
        std::vector<gpu_description> gpus;
        std::string path;
        const cuda_api* api = read_options(options, path, error) ? cuda_api::get(path, error) : nullptr;
        int count = 0;
        if (!api || api->cuDeviceGetCount(&count) != CUDA_SUCCESS)
            return gpus;
        for (int i = 0; i < count; ++i) {
            CUdevice device = 0;
            if (api->cuDeviceGet(&device, i) == CUDA_SUCCESS)
                gpus.push_back(describe_device(*api, device, static_cast<std::uint32_t>(i)));
        }
        if (gpus.empty())
            error = "the CUDA driver library " + path + " has no device: look whether nvidia-smi lists one";
        return gpus;
    }

    std::shared_ptr<backend_device> open(const gpu_description& gpu, const backend_options& options,
                                         std::string& error) const override {
        std::string path;
        const cuda_api* api = read_options(options, path, error) ? cuda_api::get(path, error) : nullptr;
        CUdevice device = 0;
        if (!api)
            return nullptr;
        if (api->cuDeviceGet(&device, static_cast<int>(gpu.index)) != CUDA_SUCCESS) {
            error = "the GPU '" + gpu.name + "' is gone: list the GPUs again with `kage gpus`";
            return nullptr;
        }
        std::int32_t result = 0;
        primary_ptr primary = cuda_primary::retain(*api, device, result);
        if (!primary) {
            error = "the GPU '" + gpu.name + "' gives no context: CUDA's error " + std::to_string(result);
            return nullptr;
        }
        return std::make_shared<cuda_device>(std::move(primary), gpu);
    }
};

} // namespace

const backend_module& cuda_module() {
    static const cuda_backend module;
    return module;
}

} // namespace kagemusha::gpu
