// SPDX-License-Identifier: GPL-2.0-or-later
// loop: the host loop, and the C interface around it. Serves clients and files while a launch is under way,
// and launches again while there is something to do.
#include "kagemusha/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "loop/core/mailbox.hpp"
#include "loop/core/pace.hpp"
#include "loop/host/clients.hpp"
#include "loop/host/device_loop.hpp"
#include "loop/host/files.hpp"

using namespace kagemusha::loop;

struct kagemusha_loop {
public:
    explicit kagemusha_loop(const kagemusha_loop_options& options)
        : looks_((options.flags & KAGEMUSHA_LOOP_NEVER_LOOKS) == 0)
        , device_(make_device_loop(options))
        , pace_(options.callbacks)
        , lanes_(options.lanes)
        , packed_(options.lanes)
        , steps_(options.lanes)
        , files_(options.root)
        , clients_(
              options.listener, (options.flags & KAGEMUSHA_LOOP_LINES) != 0, options.lanes,
              [this](std::uint32_t lane, event one) { report(lane, std::move(one)); },
              [this](std::uint32_t lane) { return lanes_[lane].size() >= busy_events; }) {
        stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (stop_ < 0)
            throw failure(errno, "no eventfd");
        for (std::uint32_t lane = 0; lane < options.lanes; ++lane) {
            event started;
            started.head.kind = LOOP_STARTED;
            started.head.source = lane;
            started.head.value = options.lanes;
            report(lane, std::move(started));
        }
    }
    ~kagemusha_loop() {
        if (stop_ >= 0)
            close(stop_);
    }
    kagemusha_loop(const kagemusha_loop&) = delete;
    kagemusha_loop& operator=(const kagemusha_loop&) = delete;

    void run();
    void stop() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(stop_, &one, sizeof one);
    }
    kagemusha_loop_figures figures() const {
        kagemusha_loop_figures out = figures_;
        out.clients = clients_.accepted;
        out.bytes_in = clients_.bytes_in;
        out.bytes_out = clients_.bytes_out;
        return out;
    }

private:
    void report(std::uint32_t lane, event one) {
        if (!lanes_[lane].push(std::move(one)))
            throw failure(ENOBUFS, "lane " + std::to_string(lane) + " has more than " +
                                       std::to_string(max_events) +
                                       " events waiting: its program asks for more than it takes");
    }
    bool has_work() const {
        return std::ranges::any_of(lanes_, [](const mailbox& m) { return !m.empty(); }) ||
               std::ranges::any_of(steps_, [](std::uint32_t steps) { return steps != 0; });
    }
    void launch();
    void launched();
    void carry_out(std::uint32_t lane, const request& one);

    const bool looks_;
    std::unique_ptr<device_loop> device_;
    pace pace_;
    std::vector<mailbox> lanes_;
    std::vector<std::uint32_t> packed_, steps_; // of each lane: events in the inbox; steps that wait
    std::uint32_t token_ = 0;
    files files_;
    clients clients_;
    int stop_ = -1;
    kagemusha_loop_figures figures_{};
};

void kagemusha_loop::run() {
    std::vector<pollfd> polled;
    for (;;) {
        if (!device_->runs() && has_work())
            launch();
        polled.assign({{stop_, POLLIN, 0}, {device_->ended_fd(), POLLIN, 0}});
        clients_.wants(polled);
        if (poll(polled.data(), polled.size(), -1) < 0) {
            if (errno == EINTR)
                continue;
            throw failure(errno, "poll failed");
        }
        if ((polled[1].revents & POLLIN) != 0 && device_->runs())
            launched();
        clients_.serve(std::span(polled).subspan(2));
        if ((polled[0].revents & POLLIN) != 0)
            return;
    }
}

void kagemusha_loop::launch() {
    token_ = pace_.callbacks();
    figures_.shared += pace_.others_wait();
    device_->start(token_, pack_inbox(lanes_, packed_));
}

void kagemusha_loop::launched() {
    const auto times = device_->finish();
    ++figures_.launches;
    figures_.device_ns += times.device_ns;
    std::uint32_t most = 0;
    std::vector<lane_report> reports;
    for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
        reports.push_back(read_outbox(device_->outbox(lane), packed_[lane], looks_ ? token_ : UINT32_MAX));
        if (!reports.back().error.empty())
            throw failure(EPROTO, reports.back().error);
        const loop_lane_out& head = reports.back().head;
        figures_.callbacks += head.callbacks;
        most = std::max(most, head.callbacks);
        steps_[lane] = head.steps;
        lanes_[lane].consumed(head.consumed);
    }
    figures_.yields += most == token_ && has_work();
    pace_.launched(most, times.device_ns, times.elapsed_ns);
    for (std::uint32_t lane = 0; lane < reports.size(); ++lane)
        for (const request& one : reports[lane].requests)
            carry_out(lane, one);
}

void kagemusha_loop::carry_out(std::uint32_t lane, const request& one) {
    switch (one.head.kind) {
    case LOOP_SEND:
        clients_.send(lane, one);
        return;
    case LOOP_CLOSE:
        clients_.close_when_sent(one.head.target);
        return;
    case LOOP_OPEN:
        report(lane, files_.open(one));
        return;
    case LOOP_FETCH:
        report(lane, files_.read(one));
        return;
    case LOOP_FORGET:
        files_.forget(one.head.target);
        return;
    case LOOP_POST: {
        if (one.head.target >= lanes_.size())
            throw failure(EPROTO, "the program posts to lane " + std::to_string(one.head.target) +
                                      ", which there is not");
        event posted;
        posted.head.kind = LOOP_POSTED;
        posted.head.source = lane;
        posted.head.cookie = one.head.cookie;
        posted.data = one.data;
        report(one.head.target, std::move(posted));
        return;
    }
    }
}

namespace {

int report_error(char* error, std::size_t bytes, int number, const char* text) {
    if (error != nullptr && bytes != 0)
        std::snprintf(error, bytes, "%s", text);
    return -number;
}

// What can't be, as a sentence; nullptr: nothing.
const char* fault_of(const kagemusha_loop_options* options) {
    if (options == nullptr || options->size != sizeof *options)
        return "the options are of another version of this library";
    if ((options->source == nullptr) == (options->image == nullptr))
        return "the options have a source (OpenCL) or an image (CUDA), one of them";
    if (options->lanes == 0 || options->lanes > LOOP_MAX_LANES)
        return "lanes must be 1 to 64";
    if (options->items > 1024)
        return "items must be at most 1024";
    if (options->state_bytes > max_state_bytes / options->lanes || options->state_bytes % 8 != 0)
        return "state_bytes must be a multiple of 8, and at most 1 GiB for all lanes";
    if ((options->context == nullptr) != (options->device == nullptr))
        return "context and device are both given, or none";
    if (options->image != nullptr && options->context != nullptr)
        return "an image has the first CUDA device: no context";
    if ((options->flags & ~(KAGEMUSHA_LOOP_LINES | KAGEMUSHA_LOOP_NEVER_LOOKS)) != 0)
        return "there is an unknown flag";
    return nullptr;
}

// Carries out `what`, and turns what it throws into an errno and a sentence.
template <typename Function>
int guarded(char* error, std::size_t bytes, Function what) {
    try {
        what();
        return 0;
    } catch (const failure& e) {
        return report_error(error, bytes, e.error, e.what());
    } catch (const std::bad_alloc&) {
        return report_error(error, bytes, ENOMEM, "out of memory");
    } catch (const std::exception& e) {
        return report_error(error, bytes, EIO, e.what());
    }
}

} // namespace

int kagemusha_loop_create(const kagemusha_loop_options* options, kagemusha_loop** made, char* error,
                          std::size_t error_bytes) {
    if (const char* fault = fault_of(options))
        return report_error(error, error_bytes, EINVAL, fault);
    return guarded(error, error_bytes, [&] { *made = new kagemusha_loop(*options); });
}

int kagemusha_loop_run(kagemusha_loop* loop, char* error, std::size_t error_bytes) {
    return guarded(error, error_bytes, [&] { loop->run(); });
}

void kagemusha_loop_stop(kagemusha_loop* loop) {
    loop->stop();
}

void kagemusha_loop_get_figures(const kagemusha_loop* loop, struct kagemusha_loop_figures* figures) {
    *figures = loop->figures();
}

void kagemusha_loop_destroy(kagemusha_loop* loop) {
    delete loop;
}
