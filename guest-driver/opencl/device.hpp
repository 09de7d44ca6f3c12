// SPDX-License-Identifier: GPL-2.0-or-later
//
// The platform and its devices: each virtual device of the guest is one, and stands for a GPU of the host.
// All live as long as the process; what the host says about a device never changes and is asked once.
#pragma once

#include "object.hpp"
#include "query.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace kagemusha::opencl {

class connection;

class platform : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::platform;
    platform() : object(kind_of_class) {}
};

class device : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::device;
    explicit device(std::string name) : object(kind_of_class), name_(std::move(name)) {}

    // The process' connection to it, opened or reopened if need be; null with a sentence if it is gone.
    std::shared_ptr<connection> link(std::string* error = nullptr) const;

    // The host's answer to clGetDeviceInfo; kept.
    std::shared_ptr<const answer> host_info(cl_device_info name);

    // One number of it, or `otherwise` if the host does not know.
    template <class T>
    T number(cl_device_info name, T otherwise) {
        return host_info(name)->as<T>().value_or(otherwise);
    }

    // clGetDeviceInfo as the program sees it: what this driver does not forward is left out
    // (device_info.cpp).
    cl_int info(cl_device_info name, const info_answer& to);

    bool has_images();
    bool has_extension(std::string_view name);

    // Extensions of the host's device that work through this driver.
    const std::string& extensions();

    // What clGetDeviceInfo(CL_DEVICE_NUMERIC_VERSION) gives.
    cl_version version();

private:
    cl_int extensions_with_version(const info_answer& to);
    cl_int c_versions(const info_answer& to);

    const std::string name_; // of transport.hpp
    std::mutex mutex_;
    std::map<cl_device_info, std::shared_ptr<const answer>> known_;
    std::once_flag extensions_once_;
    std::string extensions_;
};

// The only one.
platform& the_platform();

// The devices, in the order of their names; the first one is the default. None, with a sentence, when this
// guest has no device that works.
std::vector<device*> the_devices(std::string* error = nullptr);

inline constexpr const char* platform_name = "Kagemusha";
inline constexpr const char* platform_extensions =
    "cl_khr_icd cl_khr_extended_versioning cl_khr_create_command_queue";

} // namespace kagemusha::opencl
