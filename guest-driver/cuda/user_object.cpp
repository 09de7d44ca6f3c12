// SPDX-License-Identifier: GPL-2.0-or-later
//
// User objects: user_object.hpp has the idea. A program's function is called by a thread of its own, with no lock
// held: the program may hold any of its own where it lets go of the last reference.
#include "user_object.hpp"

#include "driver.hpp"
#include "graph_calls.hpp"

#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace kagemusha::cuda {

// With objects_mutex().
struct user_object {
    void (*destroy)(void*) = nullptr;
    void* data = nullptr;
    std::uint64_t of_program = 0, of_all = 0; // references
};

namespace {

// Both last as long as the process: graphs may be let go of at its end.
std::mutex& objects_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

registry& objects() {
    static auto* const only = new registry;
    return *only;
}

// Does one thing after the other.
class late_worker {
public:
    void add(std::function<void()> next) {
        const std::lock_guard held(mutex_);
        items_.push_back(std::move(next));
        if (!started_)
            std::thread([this] { run(); }).detach();
        started_ = true;
        changed_.notify_one();
    }

private:
    void run() {
        std::unique_lock held(mutex_);
        for (;;) {
            changed_.wait(held, [this] { return !items_.empty(); });
            {
                const std::function<void()> next = std::move(items_.front());
                items_.pop_front();
                held.unlock();
                next();
            }
            held.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> items_;
    bool started_ = false;
};

late_worker& worker() {
    static auto* const only = new late_worker;
    return *only;
}

// objects_mutex() is held.
void release(user_object& what, std::uint64_t count) {
    what.of_all -= count;
    if (what.of_all > 0)
        return;
    objects().remove(&what);
    worker().add([function = what.destroy, data = what.data] {
        const in_callback theirs;
        function(data);
    });
    delete &what;
}

bool is_count(unsigned count) {
    return count > 0 && count <= INT_MAX;
}

template <class Body>
CUresult of_object(CUuserObject handle, unsigned count, Body&& body) noexcept {
    return guarded([&] {
        const std::lock_guard held(objects_mutex());
        auto* const one = object_of<user_object>(objects(), handle);
        return one && is_count(count) ? body(*one) : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace

user_references::~user_references() {
    const std::lock_guard held(objects_mutex());
    for (const auto& [what, count] : counts_)
        release(*what, count);
}

void user_references::add(const user_references& other) {
    const std::lock_guard held(objects_mutex());
    for (const auto& [what, count] : other.counts_) {
        counts_[what] += count;
        what->of_all += count;
    }
}

bool user_references::add(user_object& what, std::uint64_t count, bool from_program) {
    const std::lock_guard held(objects_mutex());
    if (!objects().has(&what) || (from_program && what.of_program < count))
        return false;
    counts_[&what] += count;
    if (from_program)
        what.of_program -= count;
    else
        what.of_all += count;
    return true;
}

bool user_references::remove(user_object& what, std::uint64_t count) {
    const std::lock_guard held(objects_mutex());
    const auto found = counts_.find(&what);
    if (found == counts_.end() || found->second < count)
        return false;
    found->second -= count;
    if (found->second == 0)
        counts_.erase(found);
    release(what, count);
    return true;
}

CUresult hold_work::run(stream& where) {
    opencl::ref<opencl::event> marker;
    const CUresult error = mark(where, marker);
    if (!error)
        where.native->owner().link().flush(where.native.get());
    worker().add([kept = std::move(references), behind = std::move(marker)] {
        if (behind)
            (void)opencl::wait_blocking(*behind, *behind->where()); // an error is an end, too
    });
    return error;
}

KAGEMUSHA_ANSWERED CUresult cuUserObjectCreate(CUuserObject* handle, void* data, void (*destroy)(void*),
                                               unsigned int count, unsigned int flags) {
    return guarded([&] {
        if (!handle || !destroy || !is_count(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
            return CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_unique<user_object>();
        made->destroy = destroy;
        made->data = data;
        made->of_program = made->of_all = count;
        objects().add(made.get());
        *handle = reinterpret_cast<CUuserObject>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
    return of_object(handle, count, [&](user_object& one) {
        one.of_program += count;
        one.of_all += count;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
    return of_object(handle, count, [&](user_object& one) {
        if (one.of_program < count)
            return CUDA_ERROR_INVALID_VALUE;
        one.of_program -= count;
        release(one, count);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                                    unsigned int flags) {
    return of_graph(handle, [&](graph& one) {
        auto* const what = object_of<user_object>(objects(), object);
        if (!what || !is_count(count) || (flags & ~static_cast<unsigned>(CU_GRAPH_USER_OBJECT_MOVE)) ||
            !one.held.add(*what, count, flags == CU_GRAPH_USER_OBJECT_MOVE))
            return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object,
                                                     unsigned int count) {
    return of_graph(handle, [&](graph& one) {
        auto* const what = object_of<user_object>(objects(), object);
        return what && is_count(count) && one.held.remove(*what, count) ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace kagemusha::cuda
