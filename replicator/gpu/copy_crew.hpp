// SPDX-License-Identifier: GPL-2.0-or-later
// copy_crew: threads that share one large copy. One processor of a server copies some 6 GB/s, four copy 21
// (measured beside an H200, whose bus carries 55), so a single thread is what a large transfer waits for.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

namespace kagemusha::gpu {

class copy_crew {
public:
    // Less is copied by the caller alone: waking others costs some 50 us.
    static constexpr std::uint64_t smallest_shared_bytes = std::uint64_t{1} << 20;
    static constexpr std::uint64_t piece_bytes = std::uint64_t{256} << 10;
    static constexpr unsigned most_copiers = 4;

    // `helpers` threads beside whoever calls; fewer where the system gives no more.
    explicit copy_crew(unsigned helpers) {
        threads_.reserve(helpers);
        try {
            while (threads_.size() < helpers)
                threads_.emplace_back([this] { serve(); });
        } catch (const std::system_error&) { // a limit of threads: a copy is slower then, and right
        }
    }
    ~copy_crew() {
        {
            const std::lock_guard held(mutex_);
            closing_ = true;
        }
        wakes_.notify_all();
        for (std::thread& one : threads_)
            one.join();
    }
    copy_crew(const copy_crew&) = delete;
    copy_crew& operator=(const copy_crew&) = delete;

    // A quarter of the processors that this process may use copies, four at most: the rest is the guest's. The
    // threads begin with the first large copy. It lives as long as the process.
    static copy_crew& common() {
        static copy_crew* const only = new copy_crew(common_helpers());
        return *only;
    }
    static unsigned common_helpers() {
        return std::clamp(std::thread::hardware_concurrency() / 4, 1u, most_copiers) - 1;
    }

    // Calls copy(begin, end) for parts of [0, bytes) until each byte was in one of them, from several threads at
    // a time, and returns when all calls have. Any thread; while another one has the crew, the caller copies
    // alone. `copy` must not throw.
    template <class Copy>
    void share(std::uint64_t bytes, Copy&& copy) {
        std::unique_lock<std::mutex> mine(busy_, std::defer_lock);
        if (bytes < smallest_shared_bytes || threads_.empty() || !mine.try_lock()) {
            copy(std::uint64_t{0}, bytes);
            return;
        }
        job here;
        here.bytes = bytes;
        here.of = const_cast<void*>(static_cast<const void*>(std::addressof(copy)));
        here.call = [](void* of, std::uint64_t begin, std::uint64_t end) {
            (*static_cast<std::remove_reference_t<Copy>*>(of))(begin, end);
        };
        {
            const std::lock_guard held(mutex_);
            job_ = &here;
            ++jobs_;
        }
        wakes_.notify_all();
        work_on(here);
        std::unique_lock held(mutex_);
        job_ = nullptr; // whoever comes now is too late
        left_.wait(held, [&] { return inside_ == 0; });
    }

private:
    struct job {
        void* of = nullptr;
        void (*call)(void*, std::uint64_t, std::uint64_t) = nullptr;
        std::uint64_t bytes = 0;
        std::atomic<std::uint64_t> next = 0; // first byte that nobody has taken
    };

    static void work_on(job& of) {
        for (;;) {
            const std::uint64_t begin = of.next.fetch_add(piece_bytes, std::memory_order_relaxed);
            if (begin >= of.bytes)
                return;
            of.call(of.of, begin, std::min(of.bytes, begin + piece_bytes));
        }
    }

    void serve() {
        std::uint64_t seen = 0;
        std::unique_lock held(mutex_);
        for (;;) {
            wakes_.wait(held, [&] { return closing_ || (job_ && jobs_ != seen); });
            if (closing_)
                return;
            seen = jobs_;
            job& of = *job_;
            ++inside_;
            held.unlock();
            work_on(of);
            held.lock();
            if (--inside_ == 0)
                left_.notify_one();
        }
    }

    std::mutex busy_; // whoever shares a copy
    std::mutex mutex_;
    std::condition_variable wakes_, left_;
    job* job_ = nullptr;
    std::uint64_t jobs_ = 0; // so far
    unsigned inside_ = 0;    // helpers at the job
    bool closing_ = false;
    std::vector<std::thread> threads_;
};

} // namespace kagemusha::gpu
