// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/protected_guest.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

namespace kagemusha::test {

std::string protected_guest::new_address() {
    return directory_.socket(std::to_string(++standbys_));
}

kagemusha_device_config protected_guest::config(bool second) const {
    auto c = config_of(backend_, second);
    c.hold_bytes = c.log_bytes = hold_bytes_;
    c.differences = differences;
    c.ship_kernels = ship_kernels;
    return c;
}

std::unique_ptr<guest> protected_guest::start_standby(const std::string& at) {
    auto c = config(standbys_ % 2 != 0); // a chain goes from one GPU to the other and back
    c.standby_listen = at.c_str();
    return std::make_unique<guest>(c, memory_bytes_, false, window_bytes_);
}

void protected_guest::start() {
    primary.reset(); // the devices of an earlier run end first, the primary before the standby
    standby.reset();
    const std::string at = new_address();
    standby = start_standby(at);
    auto c = config(false);
    c.replicate_to = at.c_str();
    primary = std::make_unique<guest>(c, memory_bytes_, true, window_bytes_);
    protect();
}

void protected_guest::add_standby(const std::string& at) {
    standby = start_standby(at);
    char error[512] = "";
    ASSERT_EQ(kagemusha_device_replicate_to(primary->device(), at.c_str(), error, sizeof error), 0) << error;
}

void protected_guest::protect() {
    host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    char error[512] = "";
    ASSERT_EQ(kagemusha_device_use_checkpoints(primary->device(), 1, error, sizeof error), 0) << error;
    primary->waits_for_room = false;
}

bool protected_guest::take() {
    char error[512] = "";
    int closed = kagemusha_device_close_epoch(primary->device(), 0, error, sizeof error);
    if (closed == -EPROTO)
        return false;
    const void* state = nullptr;
    std::size_t size = 0;
    kagemusha_device_save_state(primary->device(), &state, &size);
    const auto* from = static_cast<const std::byte*>(state);
    guest_state saved = primary->save();
    std::vector<std::byte> gpu_saved(from, from + size);
    for (int i = 0; closed == 0 && i < 10'000; ++i) { // the VM runs again
        host::pump();
        closed = kagemusha_device_wait_epoch(primary->device(), 5, error, sizeof error);
        if (closed != -ETIMEDOUT)
            break;
        closed = 0;
    }
    EXPECT_EQ(closed, 0) << error;
    last = std::move(saved);
    gpu = std::move(gpu_saved);
    EXPECT_EQ(kagemusha_device_check_state(standby->device(), gpu.data(), gpu.size(), error, sizeof error), 0)
        << error;
    EXPECT_EQ(kagemusha_device_commit_state(standby->device(), gpu.data(), gpu.size(), error, sizeof error),
              0)
        << error;
    ++taken;
    return true;
}

void protected_guest::take_next() {
    while (!take() && !testing::Test::HasFailure())
        host::pump();
}

void protected_guest::fail_over() {
    primary.reset();
    char error[512] = "";
    ASSERT_EQ(kagemusha_device_take_over(standby->device(), error, sizeof error), 0) << error;
    primary = std::move(standby);
    primary->resume(last);
    host::wait([this] { return !kagemusha_device_congested(primary->device()); }, "a live device");
}

} // namespace kagemusha::test
