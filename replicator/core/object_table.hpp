// SPDX-License-Identifier: GPL-2.0-or-later
// object_table: what the guest's ids of one open file name. It holds only what validation needs to know about
// an object; the native objects are in the worker.
//
// One request changes the table as a whole or not at all: validation goes through a request's commands one by
// one, each sees what the ones before it did, and a command that breaks a rule undoes them all. Hence
// begin(), commit() and rollback().
//
// Every operation is O(1) in the number of objects. Guests choose the ids, so hashing is seeded.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "codec/op.hpp"

namespace kagemusha::core {

using codec::guest_id;

enum class event_state : std::uint8_t {
    pending,    // of a command that was handed on and has not completed
    user_unset, // a user event without a status
    done,       // complete, failed, or a user event with a status
    refused,    // of a command that was not handed on: the worker does not know this event
};

struct object {
    vgpu_object_kind kind = VGPU_OBJECT_CONTEXT;
    event_state event = event_state::done;
    bool destroyed = false;         // EVENT: destroyed by the guest while pending; its completion still comes
    bool sub_buffer = false;        // MEMORY
    bool of_log = false;            // EVENT: of a command that a standby executed for its primary's log
    bool error_undelivered = false; // QUEUE: its last error record waits for the guest
    std::uint32_t element_bytes = 0; // MEMORY: of an image; 0 for buffers
    union {
        std::uint32_t allocation = 0; // MEMORY: who pays, see object_table::allocation
        std::int32_t status;          // EVENT that is done: 0, or OpenCL's error
    };
    std::uint64_t context = 0;    // serial of the context it belongs to; a CONTEXT's own
    std::uint64_t serial = 0;     // never used twice, unlike ids
    std::uint64_t bytes = 0;      // MEMORY: buffers
    std::uint64_t extent[3] = {}; // MEMORY: images, see codec::image_extent

    bool is_image() const { return element_bytes != 0; }
};

// What all files of a device have together.
struct device_usage {
    std::uint64_t max_objects = 0;
    std::uint64_t max_memory_bytes = 0;
    std::uint64_t objects = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t requests_in_flight = 0;
    std::uint64_t written_ranges = 0;                // of guest memory, by requests in flight
    std::uint64_t max_log_memory_bytes = UINT64_MAX; // for what the log of a primary makes
};

class object_table {
public:
    struct quota {
        std::uint64_t max_objects = 0;
        std::uint64_t max_memory_bytes = 0;
    };

    // `usage` outlives the table; the table's share is given back when the table ends. `of_log`: the quota of
    // changes that a primary's log makes.
    object_table(const quota& q, const quota& of_log, device_usage& usage, std::uint64_t hash_seed);
    object_table(const quota& q, device_usage& usage, std::uint64_t hash_seed)
        : object_table(q, q, usage, hash_seed) {}
    ~object_table();
    object_table(const object_table&) = delete;
    object_table& operator=(const object_table&) = delete;

    void begin(bool of_log = false);
    void commit();
    void rollback();

    // The live object of this kind, or nothing: a queue's id never finds a buffer.
    const object* find(guest_id id, vgpu_object_kind kind) const;
    // Whether a new object can't have this id: a live object has it, or an event that is destroyed but not
    // complete.
    bool taken(guest_id id) const { return objects_.contains(id); }

    // The serial of an event whose command was handed on and has not completed, whether or not the guest
    // destroyed it; 0: there is none. Ids are used again, so whoever waits remembers the serial.
    std::uint64_t pending_serial(guest_id id) const;

    // By the quota of the change in hand.
    bool room_for_object(std::uint64_t above_quota = 0) const;
    bool room_for_memory(std::uint64_t bytes) const;

    // Inserts under an id that is not taken. Returns the serial that the object got. Memory that is not
    // `shared` with another object is a new allocation of `charge` bytes.
    std::uint64_t insert(guest_id id, object o);
    std::uint64_t insert_memory(guest_id id, object o, std::uint64_t charge);
    std::uint64_t insert_shared_memory(guest_id id, object o, const object& owner);

    // The id of a live object. A pending event stays until complete_event().
    void destroy(guest_id id);

    void set_user_event(guest_id id, std::int32_t status = 0);
    // False if there is no such pending event. Not inside begin()…commit().
    bool complete_event(guest_id id, std::int32_t status = 0);
    // Takes back what a failed call had created, unless it was destroyed meanwhile. Not inside
    // begin()…commit().
    void take_back(guest_id id, std::uint64_t serial);
    // Marks or clears QUEUE's error_undelivered; false if the queue does not exist (any more). Not inside
    // begin()…commit().
    bool set_error_undelivered(guest_id queue, bool value);
    bool error_undelivered(guest_id queue) const;

    // Every object, in no order: f(id, object).
    template <class F>
    void for_each(F&& f) const {
        for (const auto& [id, o] : objects_)
            f(id, o);
    }

    std::uint64_t size() const { return objects_.size(); }
    std::uint64_t memory_bytes() const { return memory_bytes_; }
    std::uint64_t unset_user_events() const { return unset_user_events_; }
    std::uint64_t pending_events() const { return pending_events_; }
    // Those of the log. The guest may know that they have completed, so they count against no quota of its.
    std::uint64_t pending_log_events() const { return pending_log_events_; }

    void clear(); // of a lost file

private:
    // GPU memory that lives as long as any object in it: a buffer and what was made of it.
    struct allocation {
        std::uint64_t bytes = 0;
        std::uint64_t references = 0;
    };
    struct hash {
        std::uint64_t seed;
        std::size_t operator()(guest_id id) const;
    };
    struct change {
        guest_id id;
        std::optional<object> before; // nothing: was inserted
    };
    using map = std::unordered_map<guest_id, object, hash>;

    void count(const object& o, int sign);
    void release_memory(const object& o);
    void erase(map::iterator at);
    void add_memory(std::uint64_t bytes);
    void note(guest_id id, const object* before);

    const quota quota_, log_quota_;
    device_usage& usage_;
    map objects_;
    std::vector<allocation> allocations_;
    std::vector<std::uint32_t> free_allocations_;
    std::vector<std::uint32_t> freed_; // allocations without references since begin()
    std::vector<change> journal_;
    bool in_change_ = false, log_change_ = false;
    std::uint64_t next_serial_ = 1;
    std::uint64_t memory_bytes_ = 0;
    std::uint64_t unset_user_events_ = 0;
    std::uint64_t pending_events_ = 0;
    std::uint64_t pending_log_events_ = 0, destroyed_log_events_ = 0; // the second: of the first
};

} // namespace kagemusha::core
