// SPDX-License-Identifier: GPL-2.0-or-later
// executor_resolve: what the parts of a row mean to the executor. For an enqueued op it finds the objects
// that the ids name and the memory of the payload, checks again that ranges lie inside, and enqueues the
// result.
//
// core's validator has checked all of this; the ring in between is memory that others can write. What is left
// unchecked here, a backend or its runtime refuses: boxes of images (it knows their sides).
//
// Three walks over the parts: ids, payloads, ranges. An id that names nothing refuses the command; a payload
// that does not fit the request ends the request.
#ifndef KAGEMUSHA_GPU_EXECUTOR_RESOLVE_HPP
#define KAGEMUSHA_GPU_EXECUTOR_RESOLVE_HPP

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
        if (error_ != CL_SUCCESS)
            return error_;
        each_part([&]<std::size_t I>(const auto& part) { take_payload<I>(part); });
        if (error_ != CL_SUCCESS || self_.malformed)
            return error_;
        each_part([&]<std::size_t>(const auto& part) { check_range(part); });
        return error_;
    }

    resolved<Op> result() const {
        return [&]<std::size_t... I>(std::index_sequence<I...>) -> resolved<Op> {
            return {op_, std::tuple_cat(on_host<I>(std::get<I>(row::parts))...)};
        }(std::make_index_sequence<part_count<row>>());
    }
    const payload_ptr& data() const { return data_; }

private:
    template <class F>
    static void each_part(F&& f) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (f.template operator()<I>(std::get<I>(row::parts)), ...);
        }(std::make_index_sequence<part_count<row>>());
    }

    // ---- ids

    memory_object* find_memory(codec::commands::object kind, codec::guest_id id) {
        memory_object* memory = kind == codec::commands::object::buffer ? self_.find_buffer(id)
                                : kind == codec::commands::object::image
                                    ? self_.find_image(id)
                                    : self_.objects.template find<memory_object>(id);
        if (!memory)
            error_ = CL_INVALID_MEM_OBJECT;
        return memory;
    }
    template <std::size_t I, class... A>
    void find(const codec::commands::uses_part<A...>& part) {
        static_assert(std::is_same_v<part_of_host<I>, std::tuple<host_memory&>>,
                      "only launches name something else");
        memory_[I] = find_memory(part.kind, std::invoke(part.id, *op_.c));
    }
    template <std::size_t I, class... A>
    void find(const codec::commands::ids_part<A...>& part) {
        static_assert(std::is_same_v<part_of_host<I>, std::tuple<std::span<host_memory* const>>>);
        for (const codec::guest_id id : op_.*part.view)
            if (memory_object* memory = find_memory(part.kind, id))
                list_.push_back(memory->native.get());
    }
    template <std::size_t>
    void find(const auto&) {}

    // ---- payloads

    template <std::size_t I, class... A>
    void take_payload(const codec::commands::payload_part<A...>& part) {
        bool gpu_writes = false;
        codec::commands::with_row(op_, [&]<class Row>() { // a write and a read share an op
            gpu_writes = std::get<I>(Row::parts).way == codec::commands::direction::out;
        });
        data_ = self_.payload(op_.*part.view, gpu_writes);
        if (!data_ && !self_.malformed)
            error_ = CL_INVALID_VALUE;
    }
    template <std::size_t>
    void take_payload(const auto&) {}

    // ---- ranges

    // The memory that the part with this id named.
    template <class Field>
    std::uint64_t bytes_of(const Field& id) const {
        std::uint64_t bytes = 0;
        each_part([&]<std::size_t I>(const auto& part) {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>,
                                         codec::commands::uses_part<Field>>) {
                if (part.id == id)
                    bytes = memory_[I]->bytes;
            }
        });
        return bytes;
    }
    template <class... A>
    void check_range(const codec::commands::range_part<A...>& part) {
        if (!base::range_inside(std::invoke(part.offset, *op_.c), std::invoke(part.bytes, *op_.c),
                                bytes_of(part.in)))
            error_ = CL_INVALID_VALUE;
    }
    template <class... A>
    void check_range(const codec::commands::rect_part<A...>& part) {
        if (!codec::rect_end(std::invoke(part.origin, *op_.c), std::invoke(part.region, *op_.c),
                             std::invoke(part.row, *op_.c), std::invoke(part.slice, *op_.c))
                 .within(bytes_of(part.in)))
            error_ = CL_INVALID_VALUE;
    }
    void check_range(const auto&) {}

    // ---- the result

    template <std::size_t I>
    using part_of_host = typename host_part<row, I, part_type<row, I>>::type;

    template <std::size_t I, class... A>
    std::tuple<host_memory&> on_host(const codec::commands::uses_part<A...>&) const {
        return {*memory_[I]->native};
    }
    template <std::size_t, class... A>
    std::tuple<std::span<host_memory* const>> on_host(const codec::commands::ids_part<A...>&) const {
        return {list_};
    }
    template <std::size_t, class... A>
    std::tuple<payload_ptr> on_host(const codec::commands::payload_part<A...>&) const {
        return {data_};
    }
    template <std::size_t>
    std::tuple<> on_host(const auto&) const {
        return {};
    }

    Executor& self_;
    const Op& op_;
    std::int32_t error_ = CL_SUCCESS;
    std::array<memory_object*, part_count<row>> memory_{}; // by part
    std::vector<host_memory*> list_;                       // a row has at most one list
    payload_ptr data_;                                     // and at most one payload
};

template <enqueued_op Op>
void executor::impl::run(const Op& op) {
    op_resolver<impl, Op> resolver(*this, op);
    const std::int32_t error = resolver.resolve();
    if (malformed)
        return;
    if (error != CL_SUCCESS)
        return refuse(op.c->cmd, op.c->enqueue, error);
    enqueue(op.c->cmd, op.c->enqueue, op.waits, resolver.result(), resolver.data());
}

} // namespace kagemusha::gpu

#endif
