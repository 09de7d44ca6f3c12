// SPDX-License-Identifier: GPL-2.0-or-later
// session_shadow: what the primary must know of one open file to mirror it. Pure.
//
//   rewrite()  turns a validated stream into what a standby executes: reads become markers, queries and
//                flushes go; while a state transfer runs, everything that writes GPU memory becomes a marker
//                too, and what it would have written counts as dirty.
//   registry      the live objects with the commands that made them, in dependency order: how a standby gets
//                them at any time (restore()). An object that was destroyed while others still need it
//                (a program with kernels, a buffer with sub-buffers) is kept until they are gone, so the
//                registry's memory returns to nothing when the guest's objects are gone.
//   order        what the guest's host code waited for goes before the commands that relied on it
//   (happens_before). dirty        which allocations were written since somebody asked last; two independent
//   marks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/port.hpp"
#include "core/launch_run.hpp"
#include "core/object_table.hpp"
#include "mirror/log/limits.hpp"
#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

using codec::guest_id;

enum class mirror_mode : std::uint8_t {
    off,     // nobody listens: only the registry is kept
    syncing, // a state transfer runs: objects cross, commands that write memory only mark it dirty
    on,      // everything crosses
};

// A memory object that has memory of its own (sub-buffers and images made of buffers have not).
struct memory_info {
    guest_id id = 0;
    guest_id context = 0;          // 0: it was destroyed, so no queue can be made in it
    std::uint64_t flags = 0;       // CL_MEM_*
    std::uint64_t bytes = 0;       // of a buffer; 0: an image
    vgpu_cmd_create_image image{}; // of an image
    // Its creation was handed on and is not answered: the log must not name it yet, because it may have
    // failed.
    bool unconfirmed = false;
    bool dirty_for_sync = false;
    bool dirty_for_digest = false;
    // By a kernel, or copied, since it was shipped last. With kernels that are named (see session_shadow()):
    // only where one of those may have had a part in it.
    bool computed = false;
    bool repaired = false; // since it was compared last, so it is compared again
};

// Where a command's payload lies in this process: pieces of guest memory, or a copy that `keep` owns.
using payload_reader = std::function<byte_pieces(std::uint32_t payload_index)>;
// A command reads into a payload; told in the order of the commands, between what they ask a payload_reader.
using payload_note = std::function<void(std::uint32_t payload_index)>;

// Host memory that the registries of all files of a device may hold together.
struct registry_budget {
    std::uint64_t limit = max_registry_bytes;
    std::uint64_t used = 0;
};

// A call that restore() wrote and that is not simply to be repeated.
struct restored_call {
    std::size_t entry = 0; // index into what restore() appended
    bool pending = false;  // its result is not known yet, and comes with `token`
    std::uint64_t token = 0;
    std::int32_t result = 0; // not pending: it failed on the primary too, and left a log behind
};

struct rewrite_hints {
    bool pack = false; // entries may have packed streams
    // Of the request's stream: what is known of these launches need not be found out again.
    core::launch_runs repeats = {};
};

class session_shadow {
public:
    // `budget` and `named` outlive the file; null: one of its own, or none. `hash_seed`: random, because
    // guests choose ids. `named`: kernels that give something else each time.
    explicit session_shadow(registry_budget* budget = nullptr, std::uint64_t hash_seed = 0,
                            const std::vector<std::string>* named = nullptr);
    ~session_shadow();

    // The request that the device hands on next. Appends the log's entries for it (none, one, or two: a call
    // has an entry of its own) without sequence and file; updates registry and dirty marks. `token` comes back
    // in on_done().
    //
    // A call's entry has entry_awaits_outcome; BUILD, COMPILE and LINK, which leave state behind when they
    // fail too, have entry_may_fail as well.
    //
    // An entry's content lies in guest memory (content_in_guest) where `payloads` gave pieces without keep.
    // If some of it is to come the entry has entry_late_content, and its content has to be taken out of it.
    void rewrite(const worker::request_view& request, mirror_mode mode, const payload_reader& payloads,
                 std::vector<log_entry>& out, const rewrite_hints& hints = {},
                 const payload_note& reads_into = {});
    // The guest hears of this event, if it has not heard already. While commands cross: see happens_before.
    void on_completion(guest_id event, bool failed);
    // The call of this request failed or succeeded: registry only. What the log must be told is the caller's.
    void on_done(std::uint64_t token, std::int32_t result);

    // Entries that make every live object of the registry in an empty file, except the content of memory.
    // Every live event becomes one that is complete (or failed, as it did); an unset user event stays unset.
    // The calls in `calls` have entry_awaits_outcome, the others have not.
    void restore(const core::object_table& objects, std::vector<log_entry>& out,
                 std::vector<restored_call>& calls) const;

    // Contexts and queues that live and whose creation is known to have succeeded, in the order of their
    // creation.
    std::vector<guest_id> contexts() const;
    std::vector<guest_id> queues(guest_id context) const;
    bool queue_is_in_order(guest_id queue) const; // false also if there is none
    // Grows whenever queues() has a new one: the agent asks before every request, so it is one load.
    std::uint64_t queues_created() const;
    // Every allocation; `f` may clear marks. Of a buffer that was destroyed while sub-buffers or images of it
    // live, those are told of instead, because nothing else can name the memory.
    void for_each_memory(const std::function<void(memory_info&)>& f);
    // The allocation that a memory object of this id lies in; null if there is none.
    memory_info* find_memory(guest_id id);
    bool memory_is_pending() const; // some of it is unconfirmed

    // Whether a kernel of `named` has run while a standby was there.
    bool launched_named() const;
    // What is `computed` was shipped; some of it may be left.
    void note_shipped();

    // Host memory that the registry holds; 0 when no object is left.
    std::uint64_t registry_bytes() const;
    // Null, or why this file can't be mirrored until it is closed (the budget was used up): a static
    // sentence.
    const char* failure() const;

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::mirror
