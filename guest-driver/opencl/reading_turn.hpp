// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which thread reads what the device tells. The connection has one for it, the keeper. A program that makes one
// blocking call after the other waits for two wakes each time: the keeper's, and its own by the keeper. After some
// such calls the keeper rests, and the thread that waits reads for itself.
//
// While the keeper rests and nobody reads, nothing may be awaited but by a thread that is about to. What the device
// tells of nothing that was awaited (text, a queue's error, its loss) then lies for as long as a rest takes.
//
// Pure, and not safe against threads: its user has a lock, and wakes the keeper where it says so.
#pragma once

#include <algorithm>
#include <utility>

namespace kagemusha::opencl {

// Who looks at a command's event.
enum class awaited_by : unsigned char {
    nobody,  // the driver itself, when it happens to come by
    program, // whoever the program gave it to, some time
    call,    // the call that enqueues it, at once
};

class reading_turn {
public:
    // So many blocking calls in a row, before the keeper rests.
    static constexpr unsigned calls_before_rest = 8;

    // A command was enqueued whose event the device will tell of. True: wake the keeper.
    bool on_enqueued(awaited_by who) {
        if (who == awaited_by::call)
            calls_ = std::min(calls_ + 1, calls_before_rest);
        else if (who == awaited_by::program)
            calls_ = 0;
        return who == awaited_by::program && wake();
    }

    // The keeper has read what there was; `pending`: commands whose event is still to come. True: it rests until
    // somebody wakes it or on_rested() says false.
    bool rest(bool pending) { return resting_ = !pending && calls_ == calls_before_rest; }
    bool resting() const { return resting_; }
    // The time of a rest is over. True: for another one, because the program goes on as it did.
    bool on_rested() {
        resting_ = reading_ || std::exchange(read_, false);
        return resting_;
    }

    // A thread of the program begins to wait. True: it reads until it has what it waits for, and calls end().
    bool begin() {
        if (!resting_ || reading_)
            return false;
        return reading_ = read_ = true;
    }
    // True: wake the keeper, because of what is `pending`.
    bool end(bool pending) {
        reading_ = false;
        return pending && wake();
    }

    // The keeper has to do something. True: wake it. False: it does, or somebody reads and will end.
    bool wake() { return !reading_ && std::exchange(resting_, false); }

private:
    unsigned calls_ = 0;
    bool resting_ = false; // the keeper
    bool reading_ = false; // somebody else
    bool read_ = false;    // the same, since the keeper's rest began
};

} // namespace kagemusha::opencl
