// SPDX-License-Identifier: GPL-2.0-or-later
//
// Samplers.
#pragma once

#include "context.hpp"

namespace kagemusha::opencl {

class sampler : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::sampler;

    struct settings {
        cl_bool normalized = CL_TRUE;
        cl_addressing_mode addressing = CL_ADDRESS_CLAMP;
        cl_filter_mode filter = CL_FILTER_NEAREST;
    };

    sampler(ref<context> owner, const settings& chosen, std::vector<cl_sampler_properties> properties);
    ~sampler();
    cl_int create();

    context& owner() const noexcept { return *owner_; }
    std::uint64_t id() const noexcept { return id_; }
    const settings& chosen() const noexcept { return chosen_; }
    const std::vector<cl_sampler_properties>& properties() const noexcept { return properties_; }

private:
    const ref<context> owner_;
    const std::uint64_t id_;
    const settings chosen_;
    const std::vector<cl_sampler_properties> properties_;
    bool created_ = false;
};

} // namespace kagemusha::opencl
