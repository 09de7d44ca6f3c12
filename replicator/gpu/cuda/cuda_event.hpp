// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_event: completions. CUDA calls back in order of a stream, but not after a failure, so a thread asks
// for the events' states (cuda_poller), in each stream the oldest one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "gpu/backend_module.hpp"
#include "gpu/cuda/cuda_api.hpp"
#include "gpu/cuda/cuda_staging.hpp"

namespace kagemusha::gpu {

class cuda_primary;
class cuda_event;

// What a read leaves to do when the GPU is done: its bytes go to the guest.
struct cuda_copy_back {
    cuda_staging::block bytes;
    payload_ptr to; // nullptr: a write, whose bytes the GPU reads until then
    // Of a box: `bytes` has its rows without gaps, guest memory has them with these pitches. Else one row.
    box_shape shape;
    box_pitch pitch;

    // From guest memory, or to it; false when that is gone.
    bool take(const guest_payload& from);
    bool write_back() const;
};

class cuda_poller {
public:
    explicit cuda_poller(std::shared_ptr<cuda_primary> primary);
    // What is left is still told. May be called by what the last event tells.
    ~cuda_poller();
    cuda_poller(const cuda_poller&) = delete;
    cuda_poller& operator=(const cuda_poller&) = delete;

    void add(cuda_event& event);
    // Nanoseconds of an event of this context that has completed and has a time.
    bool time_of(CUevent event, std::uint64_t& ns);
    // From here on kernels may print: the driver writes their text when somebody waits, and asking for an event's
    // state is not waiting.
    void expect_text() { shared_->may_print.store(true, std::memory_order_relaxed); }
    bool may_print() const { return shared_->may_print.load(std::memory_order_relaxed); }

private:
    // The thread's too, which may be the last to have it.
    struct shared {
        explicit shared(std::shared_ptr<cuda_primary> p) : primary(std::move(p)) {}
        void run();
        // The oldest of each lane that can be told now, taken out. Lock held.
        std::vector<std::pair<cuda_event*, std::int32_t>> take_finished();

        const std::shared_ptr<cuda_primary> primary;
        std::mutex mutex;
        std::condition_variable wakes;
        std::map<std::uint64_t, std::deque<cuda_event*>> lanes;
        std::unordered_set<std::uint64_t> unreported; // numbers of events
        bool closing = false;
        std::atomic<bool> may_print = false;
    };

    const std::shared_ptr<shared> shared_;
    CUevent base_ = nullptr; // what times are counted from
    std::thread thread_;
};

class cuda_event final : public host_event {
public:
    // `native` is recorded in the stream `lane`.
    cuda_event(std::shared_ptr<cuda_primary> primary, std::shared_ptr<cuda_poller> poller, CUevent native,
               std::uint64_t lane, std::unique_ptr<cuda_copy_back> rest, std::vector<std::uint64_t> waits);
    ~cuda_event() override;

    std::int32_t notify(callback fn, void* data) override;
    std::int32_t poll() const override;
    bool timing(event_timing& out) const override;
    std::int32_t set_status(std::int32_t) override;

    CUevent native() const { return native_; }
    std::uint64_t number() const { return number_; }
    std::uint64_t lane() const { return lane_; }
    const std::vector<std::uint64_t>& waits() const { return waits_; }
    void finish(std::int32_t status); // by the poller, once

private:
    const std::shared_ptr<cuda_primary> primary_;
    const std::shared_ptr<cuda_poller> poller_;
    const CUevent native_;
    const std::uint64_t lane_;
    const std::uint64_t number_;
    std::unique_ptr<cuda_copy_back> rest_;
    const std::vector<std::uint64_t> waits_; // numbers: told before this one
    callback callback_ = nullptr;
    void* callback_data_ = nullptr;
};

// No stream of CUDA's can wait for it, so it is for events that are set before a command names them: a standby
// has such ones in place of events that completed on the primary. A command that would have to wait is refused.
class cuda_user_event final : public host_event {
public:
    std::int32_t notify(callback, void*) override;
    std::int32_t poll() const override { return status_; }
    bool timing(event_timing&) const override { return false; }
    std::int32_t set_status(std::int32_t status) override;

private:
    std::int32_t status_ = 1; // the executor's thread alone
};

} // namespace kagemusha::gpu
