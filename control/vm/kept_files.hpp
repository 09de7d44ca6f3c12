// SPDX-License-Identifier: GPL-2.0-or-later
//
// What this host keeps of the files that its VMs' guests were started from (control/ha/guest_files.hpp), so that
// an upgrade of our packages, which replaces them, leaves them to a guest that runs on:
//
//   $KAGEMUSHA_STATE_DIR, else $KAGEMUSHA_RUNTIME_DIR, else state_path()
//     kept/VM/SUPERVISOR/HEX    mode 0700; HEX: the SHA-256 of what is in the file
//
// QEMU gets these names, so what a package manager puts in a file's place beneath a VM is nothing to its QEMU.
// They share their blocks with the originals where the file system can do that (a reflink, or a second name),
// and are copies elsewhere. A supervisor has a folder of its own, which it keeps locked, and reads those of the
// same VM: a host's supervisor is `web` at one time and `web-standby` at another. Files that were copied here from
// the primary's host are as good: what is in one is checked against its name before it is used.
//
// Threads: the supervisor's main thread. Errors: sentences.
#pragma once

#include "control/base/process.hpp"

#include <set>
#include <string>
#include <vector>

namespace kagemusha::control {

// Where this user's state is that lasts, the daemon's, too: $KAGEMUSHA_STATE_DIR, else of an installation's root
// /var/lib/kagemusha, else $XDG_STATE_HOME/kagemusha, else ~/.local/state/kagemusha. It may not exist.
std::string state_path();
inline constexpr char installed_state[] = "/var/lib/kagemusha";

class kept_files {
public:
    // Those of supervisors that run no more are bounded: the folders that were used least recently go.
    static constexpr std::size_t most_idle_folders = 64;

    // Nothing is kept when it could not be opened: a sentence in `error`.
    static kept_files open(const std::string& vm, const std::string& supervisor, std::string& error);
    kept_files() = default;

    explicit operator bool() const { return !own_.empty(); }

    // Keeps the file at `path`, whose digest ("sha256:HEX") its caller has computed. The name under which it is
    // kept; "" and a sentence.
    std::string keep(const std::string& path, const std::string& digest, std::string& error);
    // A file that an older release, which keeps nothing, has left.
    void adopt(const std::string& path);
    // The name of a kept file, after its content was checked; "" and a sentence.
    std::string find(const std::string& digest, std::string& error);
    // Digests of all that is kept for this VM. Their content was not checked.
    std::set<std::string> all() const;
    // Of those in this supervisor's own folder.
    std::set<std::string> own() const;
    void drop(const std::vector<std::string>& digests);

private:
    std::string of_vm_, own_;
    unique_fd lock_;                // on own_
    std::set<std::string> checked_; // by this object
};

} // namespace kagemusha::control
