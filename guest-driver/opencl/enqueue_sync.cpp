// SPDX-License-Identifier: GPL-2.0-or-later
//
// Markers, barriers and migration.
#include "api.hpp"
#include "enqueue.hpp"
#include "memory.hpp"

namespace kagemusha::opencl {
namespace {

template <class Row>
cl_int synchronise(cl_command_queue where, cl_command_type type, cl_uint count, const cl_event* list,
                   cl_event* out) {
    enqueueing call(where, type, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    auto command = make_command<Row>();
    return call.send(command);
}

} // namespace

namespace api {

cl_int enqueue_marker_with_wait_list(cl_command_queue where, cl_uint count, const cl_event* list,
                                     cl_event* out) {
    return synchronise<commands::marker>(where, CL_COMMAND_MARKER, count, list, out);
}

cl_int enqueue_barrier_with_wait_list(cl_command_queue where, cl_uint count, const cl_event* list,
                                      cl_event* out) {
    return synchronise<commands::barrier>(where, CL_COMMAND_BARRIER, count, list, out);
}

cl_int enqueue_marker(cl_command_queue where, cl_event* out) {
    if (!out)
        return from_handle<queue>(where) ? CL_INVALID_VALUE : CL_INVALID_COMMAND_QUEUE;
    return synchronise<commands::marker>(where, CL_COMMAND_MARKER, 0, nullptr, out);
}

cl_int enqueue_barrier(cl_command_queue where) {
    return synchronise<commands::barrier>(where, CL_COMMAND_BARRIER, 0, nullptr, nullptr);
}

cl_int enqueue_wait_for_events(cl_command_queue where, cl_uint count, const cl_event* list) {
    if (!from_handle<queue>(where))
        return CL_INVALID_COMMAND_QUEUE;
    if (count == 0 || !list)
        return CL_INVALID_VALUE;
    const cl_int error = synchronise<commands::barrier>(where, CL_COMMAND_BARRIER, count, list, nullptr);
    return error == CL_INVALID_EVENT_WAIT_LIST ? CL_INVALID_EVENT : error;
}

cl_int enqueue_migrate_mem_objects(cl_command_queue where, cl_uint object_count, const cl_mem* objects,
                                   cl_mem_migration_flags flags, cl_uint count, const cl_event* list,
                                   cl_event* out) {
    enqueueing call(where, CL_COMMAND_MIGRATE_MEM_OBJECTS, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    constexpr cl_mem_migration_flags known =
        CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED;
    if (object_count == 0 || !objects || (flags & ~known))
        return CL_INVALID_VALUE;
    std::vector<std::uint64_t> ids;
    for (cl_uint i = 0; i < object_count; ++i) {
        const memory* const one = from_handle<memory>(objects[i]);
        if (!one)
            return CL_INVALID_MEM_OBJECT;
        if (&one->owner() != &call.owner())
            return CL_INVALID_CONTEXT;
        ids.push_back(one->id());
    }
    // In pieces, as a command is bounded; the list is a hint anyway and its order does not matter.
    constexpr std::size_t piece = 1024;
    std::size_t at = 0;
    const auto send = [&](std::size_t number, bool step) {
        auto command = make_command<commands::migrate>();
        command.flags = flags;
        const codec::id_list some = codec::id_list(ids).subspan(at, number);
        at += number;
        return step ? call.send_step(command, some) : call.send(command, some);
    };
    if (ids.size() <= piece)
        return send(ids.size(), false);
    while (at < ids.size()) {
        const cl_int error = send(std::min(piece, ids.size() - at), true);
        if (error != CL_SUCCESS)
            return error;
    }
    return call.join();
}

} // namespace api
} // namespace kagemusha::opencl
