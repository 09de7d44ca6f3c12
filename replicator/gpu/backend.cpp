// SPDX-License-Identifier: GPL-2.0-or-later
// backend: see backend.hpp. The one place that names all backends.
#include "gpu/backend.hpp"

#include <algorithm>
#include <charconv>

#include "gpu/backend_module.hpp"
#include "gpu/own_selector.hpp"

namespace kagemusha::gpu {

namespace {

const backend_module* find_module(std::string_view name, std::string& error) {
    for (const backend_module* module : {&opencl_module(), &cuda_module(), &null_module(), &faulty_module()})
        if (module->name() == name)
            return module;
    error = "there is no GPU backend '" + std::string(name) + "'; there are: opencl, cuda, null, faulty";
    return nullptr;
}

bool to_number(std::string_view text, std::uint32_t& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
}

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
    return out;
}

std::string names_of(const std::vector<const gpu_description*>& gpus) {
    std::string out;
    for (const gpu_description* gpu : gpus)
        out += (out.empty() ? "" : ", ") + std::to_string(gpu->index) + ": " + gpu->name;
    return out;
}

const gpu_description* select(const std::vector<gpu_description>& gpus, std::string_view selector,
                              std::string& error) {
    std::vector<const gpu_description*> fits;
    std::uint32_t number = 0, device = 0;
    const auto dot = selector.find('.');
    if (selector.empty()) {
        for (const auto& gpu : gpus)
            if (gpu.is_default)
                fits.push_back(&gpu);
    } else if (is_processor_selector(selector) || !pci_of_selector(selector).empty() ||
               is_mig_selector(selector)) {
        for (const auto& gpu : gpus)
            if (gpu.own_selector == selector)
                fits.push_back(&gpu);
    } else if (to_number(selector, number)) {
        for (const auto& gpu : gpus)
            if (gpu.index == number)
                fits.push_back(&gpu);
    } else if (dot != selector.npos && to_number(selector.substr(0, dot), number) &&
               to_number(selector.substr(dot + 1), device)) {
        for (const auto& gpu : gpus)
            if (gpu.platform_index == number && gpu.device_index == device)
                fits.push_back(&gpu);
    } else {
        for (const auto& gpu : gpus)
            if (lower(gpu.name).find(lower(selector)) != std::string::npos)
                fits.push_back(&gpu);
    }
    if (fits.size() == 1)
        return fits[0];
    if (fits.empty()) {
        for (const auto& gpu : gpus)
            fits.push_back(&gpu);
        error = "no GPU fits '" + std::string(selector) + "'; this host has " + names_of(fits);
    } else {
        error = "more than one GPU fits '" + std::string(selector) + "': " + names_of(fits) +
                "; choose one by its number";
    }
    return nullptr;
}

} // namespace

bool parse_options(std::string_view text, backend_options& out, std::string& error) {
    out.clear();
    while (!text.empty()) {
        const auto comma = text.find(',');
        const std::string_view part = text.substr(0, comma);
        const auto equals = part.find('=');
        if (equals == part.npos || equals == 0) {
            error = "the backend option '" + std::string(part) + "' is not written key=value";
            return false;
        }
        out.emplace_back(part.substr(0, equals), part.substr(equals + 1));
        text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
    }
    return true;
}

std::vector<std::string_view> backend_names() {
    return {opencl_module().name(), cuda_module().name(), null_module().name(), faulty_module().name()};
}

gpu_list list_gpus(std::string_view backend, std::string_view options) {
    gpu_list out;
    backend_options parsed;
    const backend_module* module = find_module(backend, out.error);
    if (module && parse_options(options, parsed, out.error))
        out.gpus = module->list(parsed, out.error);
    return out;
}

gpu_list choose_gpu(const gpu_list& list, std::string_view selector) {
    gpu_list out;
    out.error = list.error;
    if (list.gpus.empty())
        return out;
    if (const gpu_description* gpu = select(list.gpus, selector, out.error))
        out.gpus.push_back(*gpu);
    return out;
}

open_result open_gpu(std::string_view backend, std::string_view selector, std::string_view options) {
    open_result out;
    backend_options parsed;
    const backend_module* module = find_module(backend, out.error);
    if (!module || !parse_options(options, parsed, out.error))
        return out;
    const auto gpus = module->list(parsed, out.error);
    if (gpus.empty())
        return out;
    if (const gpu_description* gpu = select(gpus, selector, out.error))
        out.device = module->open(*gpu, parsed, out.error);
    return out;
}

const gpu_description& describe(const backend_device& device) {
    return device.description();
}

} // namespace kagemusha::gpu
