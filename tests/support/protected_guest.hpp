// SPDX-License-Identifier: GPL-2.0-or-later
// protected_guest: a guest, the standby of its device, and its checkpoints, for tests in which the first
// device dies and the guest goes on with the second one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/guest.hpp"

namespace kagemusha::test {

class protected_guest {
public:
    // `hold_bytes`: of log and hold; little room, so that a standby that is slower than its primary holds the
    // guest up, not the test.
    protected_guest(const backend_case& backend, std::uint64_t memory_bytes, std::uint64_t window_bytes = 0,
                    std::uint64_t hold_bytes = 8 << 20)
        : backend_(backend)
        , memory_bytes_(memory_bytes)
        , window_bytes_(window_bytes)
        , hold_bytes_(hold_bytes) {}

    // The primary with a standby that has a complete copy of its GPU; checkpoints are in use.
    void start();
    // The survivor gets a standby, at an address of its own or at this one; protect() when that has a copy.
    void add_standby() { add_standby(new_address()); }
    void add_standby(const std::string& at);
    void protect();

    // False: this checkpoint was aborted, because requests from before checkpoints are open.
    bool take();
    // Nothing new meanwhile: what is open since before checkpoints ends.
    void take_next();
    // The primary dies. The guest goes on from the last checkpoint.
    void fail_over();

    std::unique_ptr<guest> standby, primary;
    guest_state last;           // the last checkpoint
    std::vector<std::byte> gpu; // its state of the GPU
    unsigned taken = 0;
    // Of the devices that are started from here on.
    std::uint32_t differences = KAGEMUSHA_DIFFERENCES_REPAIR;
    const char* ship_kernels = nullptr;

private:
    std::string new_address();
    kagemusha_device_config config(bool second) const;
    std::unique_ptr<guest> start_standby(const std::string& at);

    const backend_case backend_;
    const std::uint64_t memory_bytes_, window_bytes_, hold_bytes_;
    temporary_directory directory_;
    int standbys_ = 0;
};

} // namespace kagemusha::test
