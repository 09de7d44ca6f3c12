// SPDX-License-Identifier: GPL-2.0-or-later
// Images: which texts are found, and that one which lies about a length gives none.
#include "fat_image.hpp"
#include "image.hpp"

#include <gtest/gtest.h>

#include <memory>

using namespace kagemusha::ptx_driver;

namespace {

using texts = std::vector<std::string>;

std::string long_text(char mark) {
    std::string text = std::string(".version 7.0 // ") + mark + "\n";
    for (int line = 0; line < 200; line++)
        text += "// line " + std::to_string(line * 7919) + "\n";
    return text;
}

// In memory that ends with it, for AddressSanitizer.
CUresult read(const std::vector<std::uint8_t>& image, texts& found, std::size_t claimed = 0) {
    const auto exact = std::make_unique<std::uint8_t[]>(image.size());
    std::copy(image.begin(), image.end(), exact.get());
    return texts_of(exact.get(), claimed != 0 ? claimed : image.size(), found);
}

TEST(Image, TextEndsAtItsZeroOrItsLength) {
    texts found;
    const std::string text = ".version 7.0";
    EXPECT_EQ(texts_of(text.c_str(), unknown_length, found), CUDA_SUCCESS);
    EXPECT_EQ(texts_of(text.c_str(), 8, found), CUDA_SUCCESS);
    EXPECT_EQ(found, (texts{text, ".version"}));
    EXPECT_EQ(texts_of("", unknown_length, found), CUDA_ERROR_INVALID_IMAGE);
}

TEST(Image, TheNewestTextOfAFatBinaryCounts) {
    for (const packing how : {packing::none, packing::lz4, packing::zstd}) {
        fat_image image;
        image.add(long_text('a'), 50, packing::none);
        image.add(long_text('b'), 80, how);
        image.add(long_text('c'), 70, packing::lz4);
        image.add("code", 90, packing::none, 2);
        texts found;
        EXPECT_EQ(read(image.bytes, found), CUDA_SUCCESS);
        EXPECT_EQ(found, texts{long_text('b')});
        struct {
            std::uint32_t magic = 0x466243b1, version = 1;
            const void* data;
            const void* more = nullptr;
        } wrapper{.data = image.bytes.data()};
        found.clear();
        EXPECT_EQ(texts_of(&wrapper, unknown_length, found), CUDA_SUCCESS);
        EXPECT_EQ(found, texts{long_text('b')});
    }
}

TEST(Image, MachineCodeAloneIsRefused) {
    fat_image image;
    image.add("code", 90, packing::none, 2);
    texts found;
    EXPECT_EQ(read(image.bytes, found), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST(Image, LyingLengthsAreRefused) {
    struct lie {
        std::size_t at;
        std::uint64_t value;
        std::size_t bytes;
    };
    constexpr std::size_t entry = fat_image::header_bytes;
    const lie lies[] = {
        {6, 8, 2},          // a header that is shorter than it is
        {8, 1ull << 40, 8}, // all entries
        {entry + 4, 16, 4}, // an entry's header
        {entry + 4, 0xffffffff, 4},
        {entry + 8, ~0ull, 8},       // its payload
        {entry + 16, 0xffffffff, 4}, // its compressed bytes
        {entry + 56, 0, 8},          // its text
        {entry + 56, 1ull << 40, 8},
        {entry + 56, 100u << 20, 8}, // a bomb
        {entry + 56, 3, 8},          // shorter than it is
    };
    for (const packing how : {packing::lz4, packing::zstd}) {
        for (const lie& one : lies) {
            fat_image image;
            image.add(long_text('a'), 50, how);
            std::memcpy(image.bytes.data() + one.at, &one.value, one.bytes);
            texts found;
            EXPECT_EQ(read(image.bytes, found), CUDA_ERROR_INVALID_IMAGE) << one.at << " " << one.value;
        }
        fat_image cut;
        cut.add(long_text('a'), 50, how);
        cut.bytes.resize(cut.bytes.size() / 2);
        texts found;
        EXPECT_EQ(read(cut.bytes, found), CUDA_ERROR_INVALID_IMAGE);
    }
}

TEST(Image, ALinkedImageHasAllItsTexts) {
    const texts parts{long_text('a'), long_text('b'), "c"};
    const std::vector<std::uint8_t> image = linked_image(parts);
    texts found;
    EXPECT_EQ(read(image, found), CUDA_SUCCESS);
    EXPECT_EQ(found, parts);
    found.clear();
    EXPECT_EQ(texts_of(image.data(), unknown_length, found), CUDA_SUCCESS);
    EXPECT_EQ(found, parts);
    for (std::size_t bytes = 4; bytes < image.size(); bytes += 97) { // cut off anywhere
        texts none;
        EXPECT_NE(read({image.begin(), image.begin() + static_cast<std::ptrdiff_t>(bytes)}, none),
                  CUDA_SUCCESS);
    }
}

} // namespace
