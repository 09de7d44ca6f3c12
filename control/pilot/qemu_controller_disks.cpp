// SPDX-License-Identifier: GPL-2.0-or-later
//
// qemu_controller: flushes the VM's disks, one after the other (qemu-device/checkpoint-disk.c has what answers).
#include "control/pilot/qemu_controller.hpp"

#include <fmt/format.h>

#include <utility>

namespace kagemusha::control {

namespace {

using namespace std::chrono_literals;

constexpr auto flush_period = 5ms; // the VM's output waits for it after a takeover

} // namespace

void qemu_controller::flush_disks(std::function<void(const std::string& problem)> done) {
    flush_done_ = std::move(done);
    flush_disk(0);
}

void qemu_controller::flush_disk(std::size_t index) {
    if (index == disks_.size())
        return flushed({});
    flushing_ = index;
    ask("qom-set", {{"path", "/objects/" + disks_[index]}, {"property", "flushing"}, {"value", true}},
        [this](const qmp_message& a) {
            if (a.what != qmp_message::kind::success)
                return flushed("QEMU does not flush its disks: " + description(a));
            look_at_flush();
        });
}

void qemu_controller::look_at_flush() {
    look_at_flush_.reset(); // until the answer
    const auto read = [this](const char* property, answer then) {
        ask("qom-get", {{"path", "/objects/" + disks_[flushing_]}, {"property", property}}, std::move(then));
    };
    read("flushing", [this, read](const qmp_message& a) {
        if (a.what != qmp_message::kind::success || !a.body.is_boolean())
            return flushed("QEMU does not say whether its disks are flushed: " + description(a));
        if (a.body.get<bool>()) {
            look_at_flush_ = clock::now() + flush_period;
            return;
        }
        read("flush-failure", [this](const qmp_message& b) {
            const auto why = b.body.is_string() ? b.body.get<std::string>() : description(b);
            if (!why.empty())
                return flushed(fmt::format("disk {} can't be flushed: {}", disks_[flushing_], why));
            flush_disk(flushing_ + 1);
        });
    });
}

void qemu_controller::flushed(const std::string& problem) {
    look_at_flush_.reset();
    if (const auto done = std::exchange(flush_done_, {}))
        done(problem);
}

} // namespace kagemusha::control
