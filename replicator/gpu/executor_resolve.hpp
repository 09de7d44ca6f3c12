// SPDX-License-Identifier: GPL-2.0-or-later
// executor_resolve: what the parts of a row mean to the executor. For an op that is enqueued, is a query or
// creates an object it finds the objects that the ids name and the memory of the payload, checks again that
// ranges lie inside, and gives the result to the backend.
//
// core's validator has checked all of this; the ring in between is memory that others can write. What is left
// unchecked here, a backend or its runtime refuses: boxes of images (it knows their sides).
//
// Three walks over the parts: ids; payloads and arguments; ranges. An id that names nothing refuses the
// command; a payload that does not fit the request ends the request.
#pragma once

#include <CL/cl.h>

#include <array>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "codec/rect.hpp"
#include "gpu/executor_impl.hpp"

namespace kagemusha::gpu {

template <class Executor, class Op>
class op_resolver {
    using row = codec::commands::row_of<Op>;

public:
    op_resolver(Executor& self, const Op& op) : self_(self), op_(op) {}

    // 0, or the error that refuses the command. With `malformed` of the executor set it means nothing.
    std::int32_t resolve() {
        each_part([&]<std::size_t I>(const auto& part) { find<I>(part); });
        if (error_ == CL_SUCCESS)
            each_part([&]<std::size_t>(const auto& part) { check_new(part); });
        if (error_ != CL_SUCCESS)
            return error_;
        each_part([&]<std::size_t I>(const auto& part) { take_payload<I>(part); });
        if (error_ != CL_SUCCESS || self_.malformed)
            return error_;
        if ((error_ = also(op_)) != CL_SUCCESS)
            return error_;
        each_part([&]<std::size_t>(const auto& part) { check_range(part); });
        return error_;
    }

    // Where the native object of a new object goes.
    template <class Host>
    void put_into(std::unique_ptr<Host>& place) {
        place_ = &place;
    }

    resolved<Op> result() const {
        return [&]<std::size_t... I>(std::index_sequence<I...>) -> resolved<Op> {
            return {op_, std::tuple_cat(on_host<I>(std::get<I>(row::parts))...)};
        }(std::make_index_sequence<part_count<row>>());
    }
    const payload_ptr& data() const { return data_; }

    // To be called with what became of the op, also when it was refused.
    void ended(std::int32_t error) {
        if constexpr (requires { op_.arguments; }) {
            if (kernel_)
                self_.arguments_set(*kernel_, error);
        }
    }

private:
    template <class F>
    static void each_part(F&& f) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (f.template operator()<I>(std::get<I>(row::parts)), ...);
        }(std::make_index_sequence<part_count<row>>());
    }

    // ---- ids

    // How the executor holds what an id names, and the error when it names nothing.
    template <codec::commands::object Kind>
    static constexpr auto held_as() {
        using enum codec::commands::object;
        if constexpr (Kind == context)
            return held<context_object>{CL_INVALID_CONTEXT};
        else if constexpr (Kind == queue)
            return held<queue_object>{CL_INVALID_COMMAND_QUEUE};
        else if constexpr (Kind == sampler)
            return held<sampler_object>{CL_INVALID_SAMPLER};
        else if constexpr (Kind == program)
            return held<program_object>{CL_INVALID_PROGRAM};
        else if constexpr (Kind == kernel)
            return held<kernel_object>{CL_INVALID_KERNEL};
        else
            return held<memory_object>{CL_INVALID_MEM_OBJECT};
    }
    template <class Object>
    struct held {
        using type = Object;
        std::int32_t error;
    };
    template <std::size_t I>
    using held_type = typename decltype(held_as<std::get<I>(row::parts).kind>())::type;

    template <std::size_t I>
    held_type<I>* find_object(codec::guest_id id) {
        constexpr codec::commands::object kind = std::get<I>(row::parts).kind;
        held_type<I>* found = self_.objects.template find<held_type<I>>(id);
        if constexpr (kind == codec::commands::object::buffer || kind == codec::commands::object::image) {
            if (found && found->is_image != (kind == codec::commands::object::image))
                found = nullptr;
        }
        if (!found && error_ == CL_SUCCESS)
            error_ = held_as<kind>().error;
        return found;
    }
    template <std::size_t I, class... A>
    void find(const codec::commands::uses_part<A...>& part) {
        found_[I] = find_object<I>(std::invoke(part.id, *op_.c));
        if constexpr (std::is_same_v<held_type<I>, kernel_object>)
            kernel_ = static_cast<kernel_object*>(found_[I]);
    }
    template <std::size_t I, class... A>
    void find(const codec::commands::ids_part<A...>& part) {
        for (const codec::guest_id id : op_.*part.view)
            if (memory_object* memory = find_object<I>(id))
                list_.push_back(memory->native.get());
    }
    template <std::size_t I, class... A>
    void find(const codec::commands::may_use_part<A...>& part) {
        if (const codec::guest_id id = std::invoke(part.id, *op_.c))
            found_[I] = find_object<I>(id);
    }
    template <std::size_t>
    void find(const auto&) {}

    template <class... A>
    void check_new(const codec::commands::creates_part<A...>& part) {
        if (self_.objects.contains(std::invoke(part.id, *op_.c)))
            error_ = id_taken;
    }
    void check_new(const auto&) {}

    // ---- by hand, after ids and payloads

    std::int32_t also(const codec::op_create_queue& op) const {
        return op.c->device_index == 0 ? CL_SUCCESS : CL_INVALID_DEVICE;
    }
    std::int32_t also(const codec::op_create_buffer& op) const {
        self_.malformed = data_ && data_->bytes() != op.c->bytes;
        return self_.malformed ? CL_INVALID_VALUE : CL_SUCCESS;
    }
    std::int32_t also(const codec::op_create_kernel&) const {
        const auto* program = found<program_object>(&vgpu_cmd_create_kernel::program);
        return program->refused ? CL_INVALID_PROGRAM_EXECUTABLE : CL_SUCCESS;
    }
    std::int32_t also(const auto&) const { return CL_SUCCESS; }

    // ---- payloads

    template <std::size_t I, class... A>
    void take_payload(const codec::commands::payload_part<A...>& part) {
        if constexpr (codec::commands::is_query<row>)
            return; // its answer is not there yet
        bool gpu_writes = false;
        codec::commands::with_row(op_, [&]<class Row>() { // a write and a read share an op
            gpu_writes = std::get<I>(Row::parts).way == codec::commands::direction::out;
        });
        data_ = self_.payload(op_.*part.view, gpu_writes);
        constexpr bool needed = !codec::commands::creates_object<row>; // new memory may have no content
        if (needed && !data_ && !self_.malformed)
            error_ = CL_INVALID_VALUE;
    }
    template <std::size_t, class... A>
    void take_payload(const codec::commands::arguments_part<A...>& part) {
        error_ = self_.changed_arguments(op_.*part.view, *kernel_);
    }
    template <std::size_t>
    void take_payload(const auto&) {}

    // ---- ranges

    // What the part with this id named.
    template <class Object, class Field>
    const Object* found(const Field& id) const {
        const Object* object = nullptr;
        each_part([&]<std::size_t I>(const auto& part) {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>,
                                         codec::commands::uses_part<Field>>) {
                if (part.id == id)
                    object = static_cast<const Object*>(found_[I]);
            }
        });
        return object;
    }
    template <class... A>
    void check_range(const codec::commands::range_part<A...>& part) {
        if (!base::range_inside(std::invoke(part.offset, *op_.c), std::invoke(part.bytes, *op_.c),
                                found<memory_object>(part.in)->bytes))
            error_ = CL_INVALID_VALUE;
    }
    template <class... A>
    void check_range(const codec::commands::rect_part<A...>& part) {
        if (!codec::rect_end(std::invoke(part.origin, *op_.c), std::invoke(part.region, *op_.c),
                             std::invoke(part.row, *op_.c), std::invoke(part.slice, *op_.c))
                 .within(found<memory_object>(part.in)->bytes))
            error_ = CL_INVALID_VALUE;
    }
    void check_range(const auto&) {}

    // ---- the result

    template <std::size_t I, class... A>
    auto on_host(const codec::commands::uses_part<A...>&) const {
        return std::tie(*static_cast<held_type<I>*>(found_[I])->native);
    }
    template <std::size_t I, class... A>
    auto on_host(const codec::commands::may_use_part<A...>&) const {
        const auto* object = static_cast<held_type<I>*>(found_[I]);
        return std::tuple(object ? object->native.get() : nullptr);
    }
    template <std::size_t I, class... A>
    auto on_host(const codec::commands::creates_part<A...>&) const {
        using host = typename host_object<std::get<I>(row::parts).kind>::type;
        return std::tie(*static_cast<std::unique_ptr<host>*>(place_));
    }
    template <std::size_t, class... A>
    std::tuple<std::span<host_memory* const>> on_host(const codec::commands::ids_part<A...>&) const {
        return {list_};
    }
    template <std::size_t, class... A>
    auto on_host(const codec::commands::payload_part<A...>&) const {
        if constexpr (codec::commands::is_query<row>)
            return std::tuple<>();
        else
            return std::tuple<payload_ptr>(data_);
    }
    template <std::size_t, class... A>
    std::tuple<std::span<const host_argument>> on_host(const codec::commands::arguments_part<A...>&) const {
        return {self_.changed};
    }
    template <std::size_t>
    std::tuple<> on_host(const auto&) const {
        return {};
    }

    Executor& self_;
    const Op& op_;
    std::int32_t error_ = CL_SUCCESS;
    std::array<void*, part_count<row>> found_{}; // by part, a held_type
    kernel_object* kernel_ = nullptr;            // whose arguments the op has
    std::vector<host_memory*> list_;             // a row has at most one list
    payload_ptr data_;                           // and at most one payload
    void* place_ = nullptr;                      // of a new object: put_into()
};

template <enqueued_op Op>
void executor::impl::run(const Op& op) {
    op_resolver<impl, Op> resolver(*this, op);
    std::int32_t error = resolver.resolve();
    if (malformed)
        return;
    if (error != CL_SUCCESS)
        refuse(op.c->cmd, op.c->enqueue, error);
    else
        error = enqueue(op.c->cmd, op.c->enqueue, op.waits, resolver.result(), resolver.data());
    resolver.ended(error);
}

template <query_op Op>
std::int32_t executor::impl::run(const Op& op) {
    op_resolver<impl, Op> resolver(*this, op);
    std::int32_t error = resolver.resolve();
    result.clear();
    if (error == CL_SUCCESS)
        error = device().answer(resolver.result(), result);
    resolver.ended(error);
    return error == CL_SUCCESS ? give_result(op.result) : error;
}

template <creating_op Op>
auto executor::impl::blank(const Op& op) {
    using enum codec::commands::object;
    static_assert(codec::commands::is_creates<part_type<codec::commands::row_of<Op>, 0>>);
    constexpr codec::commands::object kind = std::get<0>(codec::commands::row_of<Op>::parts).kind;
    if constexpr (kind == context)
        return context_object{};
    else if constexpr (kind == queue)
        return queue_object{nullptr, (op.c->properties & CL_QUEUE_PROFILING_ENABLE) != 0,
                            (op.c->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0};
    else if constexpr (kind == buffer)
        return memory_object{nullptr, next_serial++, op.c->bytes, false};
    else if constexpr (kind == image)
        return memory_object{nullptr, next_serial++, 0, true};
    else if constexpr (kind == sampler)
        return sampler_object{nullptr, next_serial++};
    else if constexpr (kind == kernel)
        return kernel_object{};
}

template <creating_op Op>
std::int32_t executor::impl::run(const Op& op) {
    op_resolver<impl, Op> resolver(*this, op);
    if (const std::int32_t error = resolver.resolve(); error != CL_SUCCESS || malformed)
        return error;
    auto object = blank(op);
    resolver.put_into(object.native);
    if (const std::int32_t error = device().create(resolver.result()))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
