// SPDX-License-Identifier: GPL-2.0-or-later
// guest: a device of the C interface and whoever uses it, for tests of two devices in one process. Everything
// runs on the test's thread: pump() dispatches all devices that live.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codec/encode.hpp"
#include "tests/support/guest_calls.hpp"
#include "tests/support/guest_memory.hpp"

namespace kagemusha::test {

struct backend_case {
    const char* name;
    const char* backend;
    const char* options;
    bool in_process;
    bool executes; // kernels run
};

// What both ends of a pair say alike; short times, so that tests are. KAGEMUSHA_TEST_GPU chooses the OpenCL
// device, KAGEMUSHA_TEST_STANDBY_GPU the second one of the pair if it is another.
kagemusha_device_config config_of(const backend_case& b, bool second = false);

// A directory in /tmp, for the sockets of one test; it ends with the object.
class temporary_directory {
public:
    temporary_directory();
    ~temporary_directory();
    temporary_directory(const temporary_directory&) = delete;
    temporary_directory& operator=(const temporary_directory&) = delete;

    const std::string& path() const { return path_; }
    std::string socket(const std::string& name) const { return "unix:" + path_ + "/" + name; }

private:
    std::string path_;
};

// A device; a standby is no more than that.
class host {
public:
    explicit host(const kagemusha_device_config& config);
    virtual ~host();
    host(const host&) = delete;
    host& operator=(const host&) = delete;

    kagemusha_device* device() const { return device_; }
    kagemusha_replication_status status() const;
    kagemusha_device_stats stats() const;
    bool is(kagemusha_replication_state s) const { return status().state == s; }

    // Dispatches every host of this process until `done`. Fails the test (and says `what` it waited for)
    // after a minute.
    static bool wait(const std::function<bool()>& done, const char* what);
    static void pump(); // whatever there is now

protected:
    virtual void on_done(std::uint64_t, const vgpu_response&) {}
    virtual void on_record(const void*, std::size_t) {}
    virtual void on_written(const kagemusha_segment&) {}

private:
    kagemusha_device* device_ = nullptr;
};

// What a checkpoint of a VM has of a guest.
struct guest_state {
    std::vector<std::byte> memory, window;
    std::uint32_t file = 0;
    std::uint64_t next_id = 1, next_token = 1;
    std::map<std::uint64_t, vgpu_response> done;
    std::map<std::uint64_t, std::int32_t> events;
    std::set<std::uint64_t> asked;
    std::map<std::uint64_t, std::pair<std::uint32_t, codec::stream_builder>> open; // requests, by token
};

// A device with memory and an open file, as a guest has it.
class guest : public host, public guest_calls {
public:
    // `runs` false: a standby's, whose VM is stopped. `window_bytes`: of region 1; 0: there is none.
    explicit guest(const kagemusha_device_config& config, std::uint64_t memory_bytes = 64u << 20,
                   bool runs = true, std::uint64_t window_bytes = 0);
    ~guest() override;

    std::byte* memory(std::uint64_t offset = 0, std::uint32_t region = 0) const {
        return (region == 0 ? *memory_ : *window_).guest() + offset;
    }
    template <class T>
    T* memory_as(std::uint64_t offset = 0, std::uint32_t region = 0) const {
        return reinterpret_cast<T*>(memory(offset, region));
    }

    // What is dirty goes to the standby while the VM runs.
    void send_ahead();
    // A checkpoint: of memory it has what was dirty since the last one. And a VM with its state, whose
    // requests without an answer are submitted again.
    guest_state save();
    void resume(const guest_state& state);

    void open(std::uint32_t file);
    void close(std::uint32_t file);
    // False: somebody else looks after congestion; a request that comes all the same is taken, as in a VM.
    bool waits_for_room = true;
    // All later requests are of this file.
    void use(std::uint32_t file) { file_ = file; }

    std::uint64_t submit(const codec::stream_builder& b) override;
    bool answered(std::uint64_t token) const override { return done_.contains(token); }
    vgpu_response answer(std::uint64_t token) const override { return done_.at(token); }
    bool completed(std::uint64_t event) const override { return events_.contains(event); }
    std::int32_t status_of(std::uint64_t event) const override { return events_.at(event); }
    bool lost() const { return lost_; }
    std::size_t open_requests() const { return open_.size(); }

protected:
    bool wait_until(const std::function<bool()>& done, const char* what) override { return wait(done, what); }
    void on_done(std::uint64_t token, const vgpu_response& response) override;
    void on_record(const void* record, std::size_t bytes) override;
    void on_written(const kagemusha_segment& range) override;

private:
    std::unique_ptr<guest_memory> memory_, window_;
    std::vector<std::byte> memory_copy_, window_copy_; // what a standby of the VM has
    bool may_be_lost() const { return !runs_; }        // only a VM that begins again has to expect it

    const bool runs_;
    bool lost_ = false;
    std::uint32_t file_ = 0;
    std::uint64_t next_token_ = 1;
    std::map<std::uint64_t, vgpu_response> done_;
    std::map<std::uint64_t, std::int32_t> events_;
    std::set<std::uint64_t> asked_; // events that the guest waits for
    std::map<std::uint64_t, std::pair<std::uint32_t, codec::stream_builder>> open_; // file, stream; by token
};

} // namespace kagemusha::test
