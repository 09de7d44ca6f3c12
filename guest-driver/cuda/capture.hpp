// SPDX-License-Identifier: GPL-2.0-or-later
//
// Capture: what is asked of a stream becomes nodes of a graph. It spreads to streams that wait for an event
// which was recorded in it, and must have come together again at its end.
#pragma once

#include "driver.hpp"
#include "graph.hpp"

#include <thread>

namespace kagemusha::cuda {

struct capture {
    std::uint64_t number = 0;
    graph* into = nullptr;
    std::unique_ptr<graph> own;           // null: `into` is the program's
    std::vector<const graph_node*> nodes; // that it made
    stream* origin = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id thread;
    bool is_invalid = false; // by something that may not be captured; only its end is left
    std::unordered_set<stream*> joined;
};

// context::detour_mutex is held in all of these.

// Work of a stream that captures goes into its graph: `taken`, with `what` moved.
CUresult capture_work(stream& where, std::unique_ptr<work>& what, bool& taken);

// A call that no graph can contain: an error, if the stream captures.
CUresult refuse_capture(stream& where);

// Something instantiated goes into the graph of a stream that captures, with what it needs. False: it does not.
// Takes the mutex itself.
bool hold_in_capture(stream& where, const user_references& what);

// A call that waits for all streams of a context. Takes the mutex itself.
CUresult refuse_captures(context& where);

// cuEventRecord and cuStreamWaitEvent; `taken` if they are part of a capture.
CUresult capture_record(stream& where, event& recorded, bool& taken);
CUresult capture_wait(stream& where, event& awaited, bool& taken);

// A stream or an event ends: no capture may know of it any more.
void forget_in_captures(stream& dead);

} // namespace kagemusha::cuda
