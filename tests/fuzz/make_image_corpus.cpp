// SPDX-License-Identifier: GPL-2.0-or-later
// The valid part of cuda_image_fuzz's corpus: each kind of image that holds PTX.
#include "make_corpus.hpp"

#include "ptx-device/driver/fat_image.hpp"
#include "ptx-device/driver/image.hpp"

namespace kagemusha::fuzz {

bool write_image_corpus(const std::string& root) {
    using ptx_driver::packing;
    const std::string text =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n    ret;\n}\n";
    const auto fat = [&](packing how) {
        ptx_driver::fat_image image;
        image.add("machine code", 70, packing::none, 2);
        image.add(text, 50, packing::none);
        image.add(text, 70, how);
        return image.bytes;
    };
    const std::string folder = root + "/cuda_image/";
    return write_file(folder + "valid-text", {text.begin(), text.end()}) &&
           write_file(folder + "valid-fat", fat(packing::none)) &&
           write_file(folder + "valid-fat-lz4", fat(packing::lz4)) &&
           write_file(folder + "valid-fat-zstd", fat(packing::zstd)) &&
           write_file(folder + "valid-linked", ptx_driver::linked_image({text, text}));
}

} // namespace kagemusha::fuzz
