// SPDX-License-Identifier: GPL-2.0-or-later
//
// Passwords and tokens as they are kept: so that who reads the store can log in with none of them (OpenSSL's
// scrypt and SHA-256). Pure: random bytes are arguments.
#pragma once

#include <string>
#include <string_view>

namespace kagemusha::control::access {

inline constexpr std::size_t salt_bytes = 16;
inline constexpr std::size_t longest_password = 256, shortest_password = 8;

// "scrypt$15$SALT$HASH", both hexadecimal. Some 50 ms and 32 MiB, so callers bound how often.
std::string hash_password(std::string_view password, std::string_view salt);
bool is_password(std::string_view password, const std::string& hash); // in the same time, whatever `hash` is

std::string digest_of(std::string_view secret); // SHA-256, hexadecimal: for secrets of full entropy alone
bool same_secret(std::string_view a, std::string_view b); // looks at all bytes
void forget(std::string& secret);                         // overwrites it, and empties it

} // namespace kagemusha::control::access
