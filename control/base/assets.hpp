// SPDX-License-Identifier: GPL-2.0-or-later
//
// Where the parts of a virtual machine are: QEMU, the guest's kernel and image, our driver for it, our
// library and worker. An installed tool finds them in its installation (installation.hpp). One in a source
// tree asks scripts/ for what Debian and the build scripts make (built there on first use, then cached), and
// finds what CMake makes in the build directory that it is in itself.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

struct assets {
    std::string flavour; // of the guest's kernel, as scripts/ names them: 6.12-cloud
    std::string qemu, kernel, initramfs, root_image;
    std::string module, icd, cuda, device_library, worker; // needed for a guest with a GPU

    nlohmann::json to_json() const;
};

inline constexpr char default_flavour[] = "6.12-cloud";

// std::nullopt: it was said on stderr what is missing. KAGE_ASSETS names a JSON file with the answer (what
// `kage assets` prints): nothing is looked up then.
std::optional<assets> find_assets(const std::string& flavour, bool with_gpu);

// Where there is firmware for this QEMU, the first one first: the folder that was installed with it
// (../share/qemu), then Debian's. Named to QEMU, so that it also finds it in a root of its own.
std::vector<std::string> firmware_dirs(const std::string& qemu);
// The folder that scripts/ is in: of the installation, or of the checkout (KAGE_ROOT, else where this was built from).
std::string source_root();
// A program or library of ours, in the installation or the build directory; "" if it is not there.
std::string find_built(const std::string& name);

// The release in a Linux bzImage's header ("6.12.43-cloud-amd64"), "" if it is none.
std::string kernel_release(const std::string& bzimage);

// Which root image a guest of ours has: "6.12-cloud" is a kernel with the usual one, "6.12-cloud+mpi" the same
// kernel with the image `mpi` (scripts/packages/guest-mpi.list).
std::string kernel_of_guest(const std::string& guest); // "6.12-cloud+mpi" → "6.12-cloud"
// The path of the image; one that a source tree has not made yet is made. "": it was said on stderr what is missing.
std::string root_image_of(const std::string& guest, const assets& parts);

} // namespace kagemusha::control
