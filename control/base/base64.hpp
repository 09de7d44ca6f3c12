// SPDX-License-Identifier: GPL-2.0-or-later
//
// Bytes as text, RFC 4648, by OpenSSL.
#pragma once

#include <openssl/evp.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace kagemusha::control {

inline std::string to_base64(std::string_view bytes) {
    std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0'); // OpenSSL ends it with a zero
    const int size =
        EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    out.resize(static_cast<std::size_t>(size));
    return out;
}

// "" if it is none.
inline std::string from_base64(const std::string& text) {
    std::string out(3 * (text.size() / 4) + 3, '\0');
    const int size =
        EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    const auto padding = std::count(text.begin(), text.end(), '=');
    if (size < padding)
        return {};
    out.resize(static_cast<std::size_t>(size - padding));
    return out;
}

} // namespace kagemusha::control
