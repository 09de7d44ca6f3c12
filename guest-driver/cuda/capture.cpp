// SPDX-License-Identifier: GPL-2.0-or-later
//
// Capture of streams: capture.hpp has the idea.
#include "capture.hpp"

#include "graph_calls.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

std::atomic<std::uint64_t> last_capture{0};

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// The legacy stream waits for all that do not say otherwise, so also for one that captures; null: for none.
capture* waited_for_by(const stream& where) {
    if (&where == where.owner->legacy.get())
        for (capture* one : where.owner->captures)
            if (!(one->origin->flags & CU_STREAM_NON_BLOCKING))
                return one;
    return nullptr;
}

CUresult refuse_implicit(const stream& where) {
    capture* const one = waited_for_by(where);
    if (one)
        one->is_invalid = true;
    return one ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult report_implicit(const stream& where) {
    return waited_for_by(where) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

void join(stream& where, capture& of, const std::vector<graph_node*>& behind) {
    where.captures = &of;
    of.joined.insert(&where);
    for (graph_node* one : behind)
        if (std::find(where.captured_last.begin(), where.captured_last.end(), one) ==
            where.captured_last.end())
            where.captured_last.push_back(one);
}

void leave(stream& where) {
    where.captures = nullptr;
    where.captured_last.clear();
}

// Takes it out of its context. graphs_mutex() is held.
std::unique_ptr<capture> take(context& owner, capture& ended) {
    for (stream* one : ended.joined)
        leave(*one);
    ended.into->is_captured = false;
    owner.captures.erase(&ended);
    owner.detours.fetch_sub(1, std::memory_order_release);
    {
        const std::lock_guard held(owner.mutex);
        for (event* one : owner.events)
            if (one->captured_in == &ended) {
                one->captured_in = nullptr;
                one->captured_last.clear();
            }
    }
    return std::unique_ptr<capture>(&ended);
}

// Whether every branch came back: nothing is last but what is last in the stream where it began.
bool is_joined(const capture& ended) {
    std::unordered_set<const graph_node*> needed(ended.origin->captured_last.begin(),
                                                 ended.origin->captured_last.end());
    for (const auto& node : ended.into->nodes)
        needed.insert(node->needs.begin(), node->needs.end());
    return std::all_of(ended.nodes.begin(), ended.nodes.end(),
                       [&](const graph_node* node) { return needed.contains(node); });
}

CUstreamCaptureStatus status_of(const stream& where) {
    return !where.captures              ? CU_STREAM_CAPTURE_STATUS_NONE
           : where.captures->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

template <class Body>
CUresult in_capturing(CUstream handle, Body&& body) noexcept {
    return in_stream(handle, [&](stream& where) {
        const std::lock_guard held(where.owner->detour_mutex);
        return body(where);
    });
}

} // namespace

CUresult capture_work(stream& where, std::unique_ptr<work>& what, bool& taken) {
    if (!where.captures)
        return refuse_implicit(where);
    if (where.captures->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const std::lock_guard held(graphs_mutex());
    const CUgraphNodeType kind = what->kind();
    capture& of = *where.captures;
    graph_node* const made = of.into->add(kind, std::move(what), where.captured_last);
    of.nodes.push_back(made);
    where.captured_last = {made};
    taken = true;
    return CUDA_SUCCESS;
}

CUresult refuse_capture(stream& where) {
    if (!where.captures)
        return refuse_implicit(where);
    where.captures->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

bool hold_in_capture(stream& where, const user_references& what) {
    if (where.owner->detours.load(std::memory_order_acquire) == 0)
        return false;
    const std::lock_guard held(where.owner->detour_mutex);
    if (!where.captures)
        return false;
    const std::lock_guard graphs(graphs_mutex());
    where.captures->into->held.add(what);
    return true;
}

CUresult refuse_captures(context& where) {
    if (where.detours.load(std::memory_order_acquire) == 0)
        return CUDA_SUCCESS;
    const std::lock_guard held(where.detour_mutex);
    for (capture* one : where.captures)
        one->is_invalid = true;
    return where.captures.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_record(stream& where, event& recorded, bool& taken) {
    if (!where.captures) {
        recorded.captured_in = nullptr;
        return refuse_implicit(where);
    }
    if (where.captures->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    recorded.captured_in = where.captures;
    recorded.captured_last = where.captured_last;
    taken = true;
    return CUDA_SUCCESS;
}

CUresult capture_wait(stream& where, event& awaited, bool& taken) {
    if (!awaited.captured_in) {
        if (!where.captures)
            return refuse_implicit(where);
        where.captures->is_invalid = true; // the graph would depend on what is not in it
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (awaited.captured_in->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (&where == where.owner->legacy.get())
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (where.captures && where.captures != awaited.captured_in) {
        where.captures->is_invalid = awaited.captured_in->is_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    join(where, *awaited.captured_in, awaited.captured_last);
    taken = true;
    return CUDA_SUCCESS;
}

void forget_in_captures(stream& dead) {
    if (!dead.captures)
        return;
    capture& of = *dead.captures;
    of.is_invalid = true;
    if (of.origin == &dead) {
        const std::lock_guard held(graphs_mutex());
        take(*dead.owner, of).reset();
    } else
        of.joined.erase(&dead);
}

namespace {

// What both ways to begin ask of a stream.
CUresult check_beginning(const stream& where, CUstreamCaptureMode mode) {
    if (static_cast<unsigned>(mode) > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (&where == where.owner->legacy.get())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return where.captures ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

// graphs_mutex() is held.
void begin(stream& where, CUstreamCaptureMode mode, graph& into, std::unique_ptr<graph> own,
           const std::vector<graph_node*>& behind) {
    auto made = std::make_unique<capture>();
    made->number = ++last_capture;
    made->into = &into;
    made->own = std::move(own);
    made->origin = &where;
    made->mode = mode;
    made->thread = std::this_thread::get_id();
    join(where, *made, behind);
    into.is_captured = true;
    where.owner->captures.insert(made.release());
    where.owner->detours.fetch_add(1, std::memory_order_release);
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    return in_capturing(handle, [&](stream& where) {
        if (const CUresult error = check_beginning(where, mode))
            return error;
        const std::lock_guard held(graphs_mutex());
        auto made = std::make_unique<graph>();
        graph& into = *made;
        begin(where, mode, into, std::move(made), {});
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                                        const CUgraphNode* dependencies,
                                                        const CUgraphEdgeData* edges, size_t count,
                                                        CUstreamCaptureMode mode) {
    return in_capturing(handle, [&](stream& where) {
        if (const CUresult error = check_beginning(where, mode))
            return error;
        const std::lock_guard held(graphs_mutex());
        graph* const into = graph_of(graph_handle);
        std::vector<graph_node*> behind;
        if (!into || into->is_captured || !read_nodes(*into, dependencies, count, behind))
            return CUDA_ERROR_INVALID_VALUE;
        if (!are_known(edges, count))
            return CUDA_ERROR_NOT_SUPPORTED;
        begin(where, mode, *into, nullptr, behind);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamBeginCapture(CUstream handle) {
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

KAGEMUSHA_ANSWERED CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
    return in_capturing(handle, [&](stream& where) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        *out = nullptr;
        if (!where.captures)
            return CUDA_ERROR_ILLEGAL_STATE;
        capture& of = *where.captures;
        if (of.origin != &where) {
            of.is_invalid = true;
            return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        }
        if (of.mode != CU_STREAM_CAPTURE_MODE_RELAXED && of.thread != std::this_thread::get_id())
            return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
        const std::lock_guard held(graphs_mutex());
        const bool complete = is_joined(of);
        const auto ended = take(*where.owner, of);
        if (ended->is_invalid)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (!complete)
            return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        *out = handle_of(ended->into);
        (void)ended->own.release(); // the program's from here on
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    return in_stream(handle, [&](stream& where) {
        if (!status)
            return CUDA_ERROR_INVALID_VALUE;
        *status = CU_STREAM_CAPTURE_STATUS_NONE;
        if (where.owner->detours.load(std::memory_order_acquire) == 0)
            return CUDA_SUCCESS; // programs ask this often
        const std::lock_guard held(where.owner->detour_mutex);
        *status = status_of(where);
        return report_implicit(where);
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status,
                                                      cuuint64_t* id, CUgraph* made,
                                                      const CUgraphNode** dependencies, size_t* count) {
    return in_capturing(handle, [&](stream& where) {
        if (!status)
            return CUDA_ERROR_INVALID_VALUE;
        *status = status_of(where);
        if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
            return report_implicit(where);
        if (id)
            *id = where.captures->number;
        if (made) // the program may add nodes; the graph is still the capture's
            *made = handle_of(where.captures->into);
        static_assert(sizeof(graph_node*) == sizeof(CUgraphNode));
        if (dependencies) // valid until the stream is used again
            *dependencies = reinterpret_cast<const CUgraphNode*>(where.captured_last.data());
        if (count)
            *count = where.captured_last.size();
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status,
                                                   cuuint64_t* id) {
    return cuStreamGetCaptureInfo_v2(handle, status, id, nullptr, nullptr, nullptr);
}

// No node has ports: all edges are plain ones.
KAGEMUSHA_ANSWERED CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status,
                                                      cuuint64_t* id, CUgraph* made,
                                                      const CUgraphNode** dependencies,
                                                      const CUgraphEdgeData** edges, size_t* count) {
    if (edges)
        *edges = nullptr;
    return cuStreamGetCaptureInfo_v2(handle, status, id, made, dependencies, count);
}

KAGEMUSHA_ANSWERED CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* dependencies,
                                                                 const CUgraphEdgeData* edges, size_t count,
                                                                 unsigned int flags) {
    return in_capturing(handle, [&](stream& where) {
        if (!where.captures)
            return CUDA_ERROR_ILLEGAL_STATE;
        if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count > 0 && !dependencies))
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(graphs_mutex());
        std::vector<graph_node*> named;
        for (std::size_t i = 0; i < count; ++i) {
            named.push_back(node_of(dependencies[i]));
            if (!where.captures->into->contains(named.back()))
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (!are_known(edges, count))
            return CUDA_ERROR_NOT_SUPPORTED;
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
            where.captured_last.clear();
        join(where, *where.captures, named);
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode* dependencies,
                                                              size_t count, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, nullptr, count, flags);
}

// What the modes differ in is which calls other threads may make meanwhile: here, all.
KAGEMUSHA_ANSWERED CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (!mode || static_cast<unsigned>(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

} // namespace kagemusha::cuda
