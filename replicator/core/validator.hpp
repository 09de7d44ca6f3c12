// SPDX-License-Identifier: GPL-2.0-or-later
// validator: one decoded command against the objects of its file. Pure.
//
// What is MALFORMED and what is an OpenCL error (docs/spec/device.md, section 5):
//   MALFORMED  a rule that the guest's driver can always keep because it knows its own objects: an id names
//   nothing, or an object of another
//              kind; a new id is in use; a user event is set twice; a payload is not as long as its region.
//              The driver's bug, or an attack. Nothing of the request is executed.
//   error      what an OpenCL program can do wrong or run into: a range outside its object, objects of two
//   contexts in one command, an image
//              format that does not exist, a quota. That command is not executed and fails with OpenCL's
//              code; the stream goes on.
//   limit      failures themselves have a bound (core/limits.hpp): the request is answered VGPU_STATUS_LIMIT,
//   nothing is executed.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/op.hpp"
#include "core/object_table.hpp"
#include "core/repeated_launches.hpp"

namespace kagemusha::core {

struct verdict {
    enum class kind : std::uint8_t { accepted, refused, malformed, limit };
    kind what = kind::accepted;
    std::int32_t error = 0;        // refused: OpenCL's code
    const char* message = nullptr; // malformed, limit: a static sentence

    bool ok() const { return what == kind::accepted; }
    static verdict refuse(std::int32_t error) { return {kind::refused, error, nullptr}; }
    static verdict malformed(const char* message) { return {kind::malformed, 0, message}; }
    static verdict limit(const char* message) { return {kind::limit, 0, message}; }
};

// Commands with an event whose completion record the guest has not taken. Refused ones are among them, and
// may exceed the limit by max_refused_per_file.
struct event_credit {
    std::uint64_t limit = 0;
    std::uint64_t in_flight = 0;
};

// An event that a request waits for.
struct awaited_event {
    guest_id id = 0;
    std::uint64_t serial = 0;
};

// What the last accepted call creates; if it fails, object_table::take_back().
struct created_object {
    guest_id id = 0;
    std::uint64_t serial = 0; // 0: nothing
};

class validator {
public:
    // `awaited`: the stream is a log's. New objects may have ids with VGPU_HOST_ID_BIT; the pending events of
    // an AWAIT are appended there.
    validator(object_table& table, event_credit& events, std::vector<awaited_event>* awaited = nullptr)
        : table_(table), events_(events), awaited_(awaited) {}

    // Checks the next command and, unless it is malformed or beyond a limit, does what it does to the table:
    // new objects, destroyed ones. The event of a refused command becomes an object too. Between begin() and
    // commit() of the table.
    verdict check(const codec::op& op);

    created_object created() const { return created_; }

    // Whether the launch is accepted, which was found to repeat one that this validator accepted; then it did
    // to the table what check() does. False: nothing was done, and check() decides.
    bool check_again(const repeated_launches::repetition& launch);
    // Serial of the context of the last enqueued command.
    std::uint64_t context() const { return context_; }

private:
    // By hand: an object whose kind is a number of the command, an image, what changes or ends an object, and
    // what only a log contains.
    verdict check(const codec::op_info& o);
    verdict check(const codec::op_create_image& o);
    verdict check(const codec::op_set_user_event& o);
    verdict check(const codec::op_destroy& o);
    verdict check(const codec::op_await& o);
    verdict check(const codec::op_built& o);
    // By the row, calls and silent commands.
    template <class Op>
    verdict check(const Op& o);

    verdict enqueue(const vgpu_enqueue& e, codec::id_list waits, const object*& queue);
    verdict finish_enqueue(const vgpu_enqueue& e, const object& queue, verdict v);
    verdict insert(guest_id id, const object& o);
    verdict insert_memory(guest_id id, const object& o, std::uint64_t charge);
    verdict insert_shared_memory(guest_id id, const object& o, const object& owner);

    object_table& table_;
    event_credit& events_;
    std::vector<awaited_event>* const awaited_;
    bool only_awaits_ = true; // so far
    created_object created_;
    std::uint64_t context_ = 0;
};

} // namespace kagemusha::core
