// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a standby's images still have when its QEMU has ended, so that the next one gets only what changed.
//
// Each QEMU of a standby has a *replica*: a random name for "what the primary's stream leaves in these images".
// When it has ended, the name is kept in a file beside each image, IMAGE.kagemusha-replica, and the next QEMU's
// supervisor says it to the primary as the *base*. A primary whose QEMU has kept what that stream did not bring
// sends only that (qemu-device/checkpoint-disk-state.c); any other sends everything.
//
// A base that is wrong would be a broken disk, so a record counts only when nobody can have touched the image:
//
//   * It is there only while no QEMU runs, and is written only when one was seen to end whose guest never ran. A
//     supervisor that was killed leaves none.
//   * It names the boot of this host: what a loss of power left of the image is not known.
//   * It names the image's inode, size and times of change: somebody may have put back an older one.
//   * Only of raw images in files: a QEMU that is killed leaves no more of them in its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kagemusha::control {

struct replica {
    std::string name; // of what the stream will leave
    std::string base; // of what is there now; empty: unknown
    friend bool operator==(const replica&, const replica&) = default;
};

// "NAME" or "NAME BASE", of 32 lower-case hexadecimal digits each; between hosts.
std::string to_text(const replica& r);
std::optional<replica> parse_replica(std::string_view text);

// What the system says of an image.
struct image_facts {
    std::uint64_t device = 0, inode = 0, size = 0;
    std::int64_t modified_ns = 0, changed_ns = 0;
    friend bool operator==(const image_facts&, const image_facts&) = default;
};

struct replica_record {
    std::string boot; // /proc/sys/kernel/random/boot_id
    std::string name;
    image_facts image;
    friend bool operator==(const replica_record&, const replica_record&) = default;
};
std::string to_text(const replica_record& r); // one line
std::optional<replica_record> parse_replica_record(std::string_view text);

// The replica that the images have, or nothing. Each image has a record, or it has none.
std::string base_of(const std::vector<std::optional<replica_record>>& records,
                    const std::vector<image_facts>& images, const std::string& boot);

// The records of one VM's images.
class replica_keeper {
public:
    // `images`: all writable ones; empty when the VM has none, or one of them is of another format than raw.
    explicit replica_keeper(std::vector<std::string> images = {}) : images_(std::move(images)) {}

    replica begin(); // a standby's QEMU is about to start. The records are gone when it returns
    void spoil();    // a guest may run from the images, or somebody may still write to them
    void leave();    // that QEMU has ended; writes the records unless it was spoiled
    void forget();   // a VM is started from the images

private:
    std::vector<std::string> images_;
    std::vector<image_facts> found_; // at begin()
    replica present_;
    bool usable_ = false;
};

} // namespace kagemusha::control
