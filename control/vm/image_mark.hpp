// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which host has the newest image of a writable disk.
//
// Each host has an image of its own, and only the VM's last host has what the guest wrote last. A VM that is
// started from another one would go back, without a sign of it. So an image whose VM may have gone on
// elsewhere has a file beside it, IMAGE.kagemusha, that says why; `kage run` does not start from such an
// image unless it is told to.
#pragma once

#include <string>
#include <vector>

namespace kagemusha::control {

enum class image_mark {
    newest,    // no file
    copy,      // a standby's: it follows the VM of another host
    protected_ // a primary's whose standby may have taken over since
};

// The sentence that refuses a start from one of these images; empty when all are the newest.
std::string why_not_newest(const std::vector<std::string>& images);

// Is on the disk when it returns. A sentence when that failed.
std::string mark_images(const std::vector<std::string>& images, image_mark mark);

} // namespace kagemusha::control
