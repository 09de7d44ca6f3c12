// SPDX-License-Identifier: GPL-2.0-or-later
#include "image.hpp"

#include "proto/abi/vgpu_protocol.h"

#include <gtest/gtest.h>

#include <cstring>
#include <elf.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kagemusha::cuda {
namespace {

struct fat {
    std::uint32_t magic = 0xba55ed50;
    std::uint16_t version = 1, header_bytes = 16;
    std::uint64_t bytes = 24;
    std::byte content[24]{};
};

TEST(Image, PtxEndsBeforeItsZero) {
    const char* const text = ".version 6.0\n.target sm_50\n";
    const auto found = image_at(text);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->size(), std::strlen(text));
    EXPECT_FALSE(image_at("\0\0\0\0\0\0\0"));
}

TEST(Image, AFatBinaryIsAsLongAsItsHeaderSays) {
    const fat image;
    ASSERT_TRUE(image_at(&image));
    EXPECT_EQ(image_at(&image)->size(), sizeof image);
}

TEST(Image, AWrapperLeadsToItsFatBinaryAndToNothingElse) {
    struct {
        std::uint32_t magic = 0x466243b1, version = 1;
        const void* data = nullptr;
        const void* name = nullptr;
    } wrapper;
    EXPECT_FALSE(image_at(&wrapper));
    const fat image;
    wrapper.data = &image;
    EXPECT_EQ(image_at(&wrapper)->data(), reinterpret_cast<const std::byte*>(&image));
    wrapper.data = &wrapper;
    EXPECT_FALSE(image_at(&wrapper)) << "a wrapper of itself";
}

TEST(Image, LengthsBeyondTheLimitAreRefused) {
    fat image;
    for (const std::uint64_t bytes :
         {std::uint64_t{VGPU_MAX_PROGRAM_BYTES}, ~std::uint64_t{0}, ~std::uint64_t{0} - 15}) {
        image.bytes = bytes;
        EXPECT_FALSE(image_at(&image)) << bytes;
    }
    Elf64_Ehdr elf{};
    std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
    elf.e_ident[EI_CLASS] = ELFCLASS64;
    elf.e_ident[EI_DATA] = ELFDATA2LSB;
    EXPECT_EQ(image_at(&elf)->size(), sizeof elf);
    elf.e_phoff = ~std::uint64_t{0} - 8;
    EXPECT_FALSE(image_at(&elf));
    elf.e_phoff = 0;
    elf.e_shnum = 1;
    EXPECT_FALSE(image_at(&elf)) << "sections of length 0";
}

TEST(Image, AnElfFileIsAsLongAsItIs) {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const auto found = image_at(bytes.data());
    ASSERT_TRUE(found);
    EXPECT_LE(found->size(), bytes.size());
    EXPECT_GE(found->size() + 64, bytes.size());
}

} // namespace
} // namespace kagemusha::cuda
