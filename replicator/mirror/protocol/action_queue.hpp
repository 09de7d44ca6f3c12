// SPDX-License-Identifier: GPL-2.0-or-later
// action_queue: what a state machine decided and nobody has fetched yet. It is emptied after every event, so
// its memory is used again and again.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kagemusha::mirror {

template <class Action>
class action_queue {
public:
    bool empty() const { return head_ == actions_.size(); }

    template <class A>
    void push(A&& action) {
        actions_.emplace_back(std::forward<A>(action));
    }

    bool pop(Action& out) {
        if (empty())
            return false;
        out = std::move(actions_[head_++]);
        if (empty()) {
            head_ = 0;
            if (actions_.capacity() > kept_capacity)
                actions_ = {};
            else
                actions_.clear();
        }
        return true;
    }

private:
    static constexpr std::size_t kept_capacity = 4096;
    std::vector<Action> actions_;
    std::size_t head_ = 0;
};

} // namespace kagemusha::mirror
