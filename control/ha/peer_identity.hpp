// SPDX-License-Identifier: GPL-2.0-or-later
//
// Whether two hosts fit together, as far as their software and what a guest sees of them goes. Supervisors
// compare it when they greet, before one stands by for the other: first the versions of what they speak
// (mirror/protocol/agreement.hpp), then what the VM is made of, part by part. A guest must find after a
// takeover what it found at its start; a release or a patch of QEMU may differ, or nobody could upgrade a
// cluster. Pure.
#pragma once

#include "mirror/protocol/message.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::ha {

// Of the dialogue between both QEMUs (COLO, with qemu-device/patches). A patch that changes what is said on
// that connection, or when, raises the first; the second is the lowest that QEMU still speaks.
inline constexpr std::uint32_t checkpoint_version = 2;
inline constexpr std::uint32_t oldest_checkpoint_version = 1;
// From this version of checkpoints on a secondary decodes what has changed of a page (x-colo-delta).
inline constexpr std::uint32_t page_changes_version = 2;
// From this version of the protocol on a DESCRIPTION has parts.
inline constexpr std::uint32_t parts_version = 2;

using description_parts = std::vector<mirror::description_part>;

// What a supervisor's hello says in any case.
mirror::hello supervisor_hello(mirror::role role, const std::string& vm);

// Why these two supervisors can't form a pair at all, as a sentence; empty: they can. `shared_record`:
// primary_config has what it means.
std::string why_not_paired(const mirror::hello& mine, const mirror::hello& theirs, bool shared_record);

// Why the VM can't go from one of these hosts to the other, as a sentence that names the first part that
// differs; empty: it can.
std::string why_not_movable(const description_parts& mine, const description_parts& theirs);
// What differs and may, as text for people; empty: nothing.
std::string allowed_differences(const description_parts& mine, const description_parts& theirs);

// What is known of the peer of one connection.
class peer_identity {
public:
    void on_link_up() { *this = {}; }
    void on_hello(const mirror::hello& mine, const mirror::hello& theirs);
    // To be sent. `text` is what an older release compares.
    mirror::supervision description(const std::string& text, const description_parts& parts) const;
    // Empty: the peer's description fits ours; else why not.
    std::string on_description(const mirror::supervision& m, const std::string& text,
                               const description_parts& parts);

    std::uint32_t version() const { return version_; } // that both speak; 0: no hello yet
    bool decodes_page_changes() const { return checkpoint_version_ >= page_changes_version; }
    const std::string& differences() const { return differences_; }

private:
    std::uint32_t version_ = 0, checkpoint_version_ = 0;
    std::string differences_;
};

} // namespace kagemusha::ha
