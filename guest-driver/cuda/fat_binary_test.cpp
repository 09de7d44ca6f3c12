// SPDX-License-Identifier: GPL-2.0-or-later
#include "fat_binary.hpp"

#include "ptx-device/driver/fat_image.hpp"

#include <gtest/gtest.h>

namespace kagemusha::cuda {
namespace {

using names = std::vector<std::string>;
using ptx_driver::fat_image;
using ptx_driver::packing;

const std::string one = ".version 7.0\n.target sm_50\n.global .u32 one;\n";
const std::string two = ".version 7.0\n.target sm_80\n.global .u32 two;\n.const .f32 three;\n";

std::optional<names> read(const fat_image& image, unsigned architecture) {
    return variables_in_fat_binary(std::as_bytes(std::span(image.bytes)), architecture);
}

TEST(FatBinary, MembersArePackedInAnyWay) {
    for (const packing how : {packing::none, packing::lz4, packing::zstd}) {
        fat_image image;
        image.add(two, 80, how);
        EXPECT_EQ(read(image, 90), (names{"two", "three"})) << static_cast<int>(how);
    }
}

TEST(FatBinary, MachineCodeOfTheGenerationGoesBeforePtx) {
    fat_image image;
    image.add(one, 50, packing::zstd);
    image.add(two, 86, packing::lz4, 2); // what is inside does not matter here
    EXPECT_EQ(read(image, 89), (names{"two", "three"}));
    EXPECT_EQ(read(image, 80), names{"one"}) << "older than the code";
    EXPECT_EQ(read(image, 90), names{"one"}) << "another generation";
}

TEST(FatBinary, WithoutAMemberForTheGpuNothingIsKnown) {
    fat_image image;
    image.add(two, 80, packing::none);
    EXPECT_EQ(read(image, 70), std::nullopt);
    EXPECT_EQ(read(fat_image(), 90), std::nullopt);
}

TEST(FatBinary, LengthsAreNotBelieved) {
    fat_image image;
    image.add(two, 80, packing::zstd);
    for (std::size_t at = 0; at < image.bytes.size(); ++at) {
        for (const unsigned char value : {0x00, 0x7f, 0xff}) {
            fat_image other = image;
            other.bytes[at] = static_cast<decltype(other.bytes)::value_type>(value);
            const auto found = read(other, 90); // whatever it is, nothing outside was read
            EXPECT_TRUE(!found || found->size() <= 2);
        }
        EXPECT_NO_THROW(variables_in_fat_binary(std::as_bytes(std::span(image.bytes).first(at)), 90));
    }
}

} // namespace
} // namespace kagemusha::cuda
