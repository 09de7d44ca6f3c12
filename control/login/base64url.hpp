// SPDX-License-Identifier: GPL-2.0-or-later
//
// Bytes as text, RFC 4648: base64, and base64url without padding, as JSON Web Tokens have it.
#pragma once

#include <openssl/evp.h>

#include <string>
#include <string_view>

namespace kagemusha::control::login {

inline std::string to_base64(std::string_view bytes) {
    std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0'); // OpenSSL ends it with a zero
    const int size =
        EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    out.resize(static_cast<std::size_t>(size));
    return out;
}

inline std::string to_base64url(std::string_view bytes) {
    auto out = to_base64(bytes);
    while (out.ends_with('='))
        out.pop_back();
    for (char& c : out)
        c = c == '+' ? '-' : c == '/' ? '_' : c;
    return out;
}

inline bool is_base64url(std::string_view text) {
    return text.size() % 4 != 1 &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
               text.npos;
}

} // namespace kagemusha::control::login
