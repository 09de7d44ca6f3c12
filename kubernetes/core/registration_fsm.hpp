// SPDX-License-Identifier: GPL-2.0-or-later
//
// When a device plugin serves its socket and tells the kubelet of it. Both sockets are in one folder; a kubelet
// that starts removes all others' and makes its own anew, and wants to be told again. So each step compares what
// is there with what was: no event has to be seen. Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace kagemusha::kubernetes {

// Which file a path means now.
struct file_identity {
    std::uint64_t device = 0, inode = 0;
    std::int64_t changed_ns = 0; // an inode's number comes again
    bool operator==(const file_identity&) const = default;
};

class registration_fsm {
public:
    enum class action { none, serve, enlist };

    // `kubelet`, `own`: the sockets now; nothing: there is none.
    action step(const std::optional<file_identity>& kubelet, const std::optional<file_identity>& own,
                std::uint64_t now_ms);
    // What became of an action; `own`: the socket that is served now; nothing: it failed.
    void served(const std::optional<file_identity>& own, std::uint64_t now_ms);
    // `kubelet`: the one that was told; nothing: it failed.
    void enlisted(const std::optional<file_identity>& kubelet, std::uint64_t now_ms);

    bool is_enlisted() const { return told_.has_value(); }

private:
    void failed(std::uint64_t now_ms);

    std::optional<file_identity> own_, told_;
    std::uint64_t not_before_ms_ = 0, pause_ms_ = 0;
};

} // namespace kagemusha::kubernetes
