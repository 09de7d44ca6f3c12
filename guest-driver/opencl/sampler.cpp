// SPDX-License-Identifier: GPL-2.0-or-later
//
// Samplers and the functions of the API about them.
#include "sampler.hpp"

#include "api.hpp"

namespace kagemusha::opencl {

sampler::sampler(ref<context> owner, const settings& chosen, std::vector<cl_sampler_properties> properties)
    : object(kind_of_class)
    , owner_(std::move(owner))
    , id_(owner_->link().new_id())
    , chosen_(chosen)
    , properties_(std::move(properties)) {}

sampler::~sampler() {
    if (created_)
        owner_->link().destroy(VGPU_OBJECT_SAMPLER, id_);
}

cl_int sampler::create() {
    auto command = make_command<commands::create_sampler>();
    command.id = id_;
    command.context = owner_->id();
    command.normalized = chosen_.normalized;
    command.addressing = chosen_.addressing;
    command.filter = chosen_.filter;
    const cl_int error = owner_->link().call(make_outgoing(command));
    created_ = error == CL_SUCCESS;
    return error;
}

namespace {

bool valid(const sampler::settings& chosen) {
    return (chosen.normalized == CL_TRUE || chosen.normalized == CL_FALSE) &&
           chosen.addressing >= CL_ADDRESS_NONE && chosen.addressing <= CL_ADDRESS_MIRRORED_REPEAT &&
           (chosen.filter == CL_FILTER_NEAREST || chosen.filter == CL_FILTER_LINEAR);
}

cl_sampler create(cl_context handle, const sampler::settings& chosen,
                  std::vector<cl_sampler_properties> properties, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_sampler>(errcode, CL_INVALID_CONTEXT);
    if (!valid(chosen))
        return fail<cl_sampler>(errcode, CL_INVALID_VALUE);
    if (!owner->gpu().has_images())
        return fail<cl_sampler>(errcode, CL_INVALID_OPERATION);
    ref<sampler> made = make_object<sampler>(ref<context>(owner), chosen, std::move(properties));
    if (!made)
        return fail<cl_sampler>(errcode, CL_OUT_OF_HOST_MEMORY);
    const cl_int error = made->create();
    if (error != CL_SUCCESS)
        return fail<cl_sampler>(errcode, error);
    succeed(errcode);
    return hand_out<cl_sampler>(std::move(made));
}

} // namespace

namespace api {

cl_sampler create_sampler(cl_context handle, cl_bool normalized, cl_addressing_mode addressing,
                          cl_filter_mode filter, cl_int* errcode) {
    return create(handle, {normalized, addressing, filter}, {}, errcode);
}

cl_sampler create_sampler_with_properties(cl_context handle, const cl_sampler_properties* properties,
                                          cl_int* errcode) {
    sampler::settings chosen;
    std::vector<cl_sampler_properties> list;
    if (properties) {
        unsigned seen = 0;
        const cl_sampler_properties* at = properties;
        for (; *at; at += 2) {
            unsigned bit;
            switch (*at) {
            case CL_SAMPLER_NORMALIZED_COORDS:
                chosen.normalized = static_cast<cl_bool>(at[1]);
                bit = 1;
                break;
            case CL_SAMPLER_ADDRESSING_MODE:
                chosen.addressing = static_cast<cl_addressing_mode>(at[1]);
                bit = 2;
                break;
            case CL_SAMPLER_FILTER_MODE:
                chosen.filter = static_cast<cl_filter_mode>(at[1]);
                bit = 4;
                break;
            default:
                return fail<cl_sampler>(errcode, CL_INVALID_VALUE);
            }
            if (seen & bit)
                return fail<cl_sampler>(errcode, CL_INVALID_VALUE);
            seen |= bit;
        }
        list.assign(properties, at + 1);
    }
    return create(handle, chosen, std::move(list), errcode);
}

cl_int retain_sampler(cl_sampler handle) {
    sampler* const one = from_handle<sampler>(handle);
    if (!one)
        return CL_INVALID_SAMPLER;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_sampler(cl_sampler handle) {
    sampler* const one = from_handle<sampler>(handle);
    return one && one->release_for_user() ? CL_SUCCESS : CL_INVALID_SAMPLER;
}

cl_int get_sampler_info(cl_sampler handle, cl_sampler_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    sampler* const one = from_handle<sampler>(handle);
    if (!one)
        return CL_INVALID_SAMPLER;
    switch (name) {
    case CL_SAMPLER_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    case CL_SAMPLER_CONTEXT:
        return to.value(to_handle<cl_context>(&one->owner()));
    case CL_SAMPLER_NORMALIZED_COORDS:
        return to.value(one->chosen().normalized);
    case CL_SAMPLER_ADDRESSING_MODE:
        return to.value(one->chosen().addressing);
    case CL_SAMPLER_FILTER_MODE:
        return to.value(one->chosen().filter);
    case CL_SAMPLER_PROPERTIES:
        return to.array(std::span<const cl_sampler_properties>(one->properties()));
    default:
        return CL_INVALID_VALUE;
    }
}

} // namespace api
} // namespace kagemusha::opencl
