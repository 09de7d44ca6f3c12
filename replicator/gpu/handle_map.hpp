// SPDX-License-Identifier: GPL-2.0-or-later
// handle_map: guest id to host object. One number space per open file (an id names at most one live object,
// of any kind), one C++ type per kind: what is found as a kernel can't be used as a queue. Every operation is
// O(1) whatever the number of live objects. Addresses of objects stay the same while they live.
//
// Single-threaded; objects that other threads share hold that part in a shared_ptr of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <variant>

#include "codec/op.hpp"

namespace kagemusha::gpu {

template <class... Objects>
class handle_map {
public:
    template <class T>
    T* find(codec::guest_id id) {
        const auto at = objects_.find(id);
        return at == objects_.end() ? nullptr : std::get_if<T>(&at->second);
    }

    bool contains(codec::guest_id id) const { return objects_.contains(id); }

    // nullptr when the id is 0 or names a live object.
    template <class T>
    T* insert(codec::guest_id id, T object) {
        if (id == 0)
            return nullptr;
        const auto [at, fresh] = objects_.try_emplace(id, std::in_place_type<T>, std::move(object));
        return fresh ? std::get_if<T>(&at->second) : nullptr;
    }

    // False when the id does not name an object of this kind.
    template <class T>
    bool erase(codec::guest_id id) {
        const auto at = objects_.find(id);
        if (at == objects_.end() || !std::holds_alternative<T>(at->second))
            return false;
        objects_.erase(at);
        return true;
    }

    template <class T, class F>
    void for_each(F&& f) {
        for (auto& [id, object] : objects_)
            if (auto* o = std::get_if<T>(&object))
                f(id, *o);
    }

    void clear() { objects_.clear(); }
    std::size_t size() const { return objects_.size(); }

private:
    // The id is its own hash: guests number their objects upwards, so neighbours lie in neighbouring buckets
    // and stay in the cache, however many others live. A guest that picks colliding ids slows down only its
    // own worker.
    struct identity {
        std::size_t operator()(codec::guest_id id) const { return static_cast<std::size_t>(id); }
    };
    std::unordered_map<codec::guest_id, std::variant<Objects...>, identity> objects_;
};

} // namespace kagemusha::gpu
