// SPDX-License-Identifier: GPL-2.0-or-later
//
// Backlogs; work.hpp has the idea. Order between streams: the legacy stream waits for the others that do not
// say otherwise, and they for it. What of that was sent to the host is its driver's business; what was not is
// waited for here, by an item that waits for the other backlog.
#include "capture.hpp"
#include "driver.hpp"

namespace kagemusha::cuda {
namespace {

constexpr std::size_t most_waiting = 65536; // items of one stream

} // namespace

void recording::set(CUresult error, opencl::ref<opencl::event> marker, queue_place behind) {
    {
        const std::lock_guard held(mutex_);
        is_sent_ = true;
        error_ = error;
        marker_ = std::move(marker);
        behind_ = behind;
    }
    sent_.notify_all();
}

bool recording::is_sent() const {
    const std::lock_guard held(mutex_);
    return is_sent_;
}

opencl::ref<opencl::event> recording::marker(CUresult& error) const {
    std::unique_lock held(mutex_);
    sent_.wait(held, [&] { return is_sent_; });
    error = error_;
    return marker_;
}

queue_place recording::behind() const {
    const std::lock_guard held(mutex_);
    return behind_;
}

backlog::~backlog() {
    {
        const std::lock_guard held(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable())
        thread_.join();
}

std::uint64_t backlog::add(item next) {
    std::unique_lock held(mutex_);
    changed_.wait(held, [&] { return items_.size() < most_waiting; });
    if (!thread_.joinable())
        thread_ = std::thread([this] { run(); });
    items_.push_back(std::move(next));
    if (added_++ == done_)
        owner_.detours.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
    return added_;
}

void backlog::run() {
    std::unique_lock held(mutex_);
    for (;;) {
        changed_.wait(held, [&] { return ending_ || !items_.empty(); });
        if (items_.empty())
            return;
        const item next = std::move(items_.front());
        items_.pop_front();
        held.unlock();
        CUresult error = CUDA_ERROR_UNKNOWN;
        try {
            error = owner_.broken_or(next());
        } catch (const std::bad_alloc&) {
            error = CUDA_ERROR_OUT_OF_MEMORY;
        } catch (...) {
        }
        held.lock();
        owner_.note_late(error);
        if (++done_ == added_)
            owner_.detours.fetch_sub(1, std::memory_order_release);
        changed_.notify_all();
    }
}

bool backlog::is_busy() const {
    const std::lock_guard held(mutex_);
    return done_ != added_;
}

std::uint64_t backlog::last() const {
    const std::lock_guard held(mutex_);
    return added_;
}

void backlog::wait_for(std::uint64_t place) const {
    std::unique_lock held(mutex_);
    changed_.wait(held, [&] { return done_ >= place; });
}

namespace {

// A place in a backlog.
struct place {
    std::shared_ptr<backlog> in;
    std::uint64_t number;
};

bool is_busy(const stream* one) {
    return one && one->waiting && one->waiting->is_busy();
}

// The ends of the other backlogs that a stream has to wait for. context::detour_mutex is held.
std::vector<place> others_before(stream& where) {
    std::vector<place> found;
    const auto look = [&](const stream* one) {
        if (one != &where && is_busy(one))
            found.push_back({one->waiting, one->waiting->last()});
    };
    context& owner = *where.owner;
    if (where.flags & CU_STREAM_NON_BLOCKING)
        return found;
    if (&where != owner.legacy.get()) {
        look(owner.legacy.get());
        return found;
    }
    const std::lock_guard held(owner.mutex);
    for (const stream* one : owner.all_streams())
        if (!(one->flags & CU_STREAM_NON_BLOCKING))
            look(one);
    return found;
}

// context::detour_mutex is held.
void add_behind(stream& where, const std::vector<place>& before, backlog::item next) {
    if (!where.waiting)
        where.waiting = std::make_shared<backlog>(*where.owner);
    for (const place& one : before)
        where.waiting->add([one] {
            one.in->wait_for(one.number);
            return CUDA_SUCCESS;
        });
    where.waiting->add(std::move(next));
}

} // namespace

CUresult submit_by_detour(stream& where, std::unique_ptr<work> what) {
    context& owner = *where.owner;
    {
        const std::lock_guard held(owner.detour_mutex);
        bool taken = false;
        const CUresult error = capture_work(where, what, taken);
        if (error || taken)
            return error;
        if (const CUresult refused = what->asked(where))
            return refused;
        const auto before = others_before(where);
        if (!before.empty() || is_busy(&where) || !what->can_run()) {
            add_behind(where, before,
                       [&where, kept = std::shared_ptr<work>(std::move(what))] { return kept->run(where); });
            return CUDA_SUCCESS;
        }
    }
    return what->run(where);
}

CUresult submit_host_function(stream& where, std::unique_ptr<work> what) {
    const std::lock_guard held(where.owner->detour_mutex);
    bool taken = false;
    const CUresult error = capture_work(where, what, taken);
    if (error || taken)
        return error;
    add_behind(where, others_before(where),
               [&where, kept = std::shared_ptr<work>(std::move(what))] { return kept->run(where); });
    return CUDA_SUCCESS;
}

CUresult settle(stream& where) {
    context& owner = *where.owner;
    if (owner.detours.load(std::memory_order_acquire) == 0)
        return owner.take_late();
    std::vector<place> before;
    {
        const std::lock_guard held(owner.detour_mutex);
        if (const CUresult error = refuse_capture(where))
            return error;
        before = others_before(where);
        if (is_busy(&where))
            before.push_back({where.waiting, where.waiting->last()});
    }
    for (const place& one : before)
        one.in->wait_for(one.number);
    return owner.take_late();
}

CUresult settle_all(context& where) {
    if (where.detours.load(std::memory_order_acquire) == 0)
        return where.take_late();
    std::vector<place> all;
    {
        const std::lock_guard held(where.detour_mutex);
        const std::lock_guard also(where.mutex);
        for (const stream* one : where.all_streams())
            if (is_busy(one))
                all.push_back({one->waiting, one->waiting->last()});
    }
    for (const place& one : all)
        one.in->wait_for(one.number);
    return where.take_late();
}

} // namespace kagemusha::cuda
