// SPDX-License-Identifier: GPL-2.0-or-later
//
// See secrets.hpp.
#include "control/access/secrets.hpp"

#include "base/hexadecimal.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <cstdlib>

namespace kagemusha::control::access {

namespace {

constexpr int cost_bits = 15; // 32 MiB of memory for each guess
constexpr std::size_t hash_bytes = 32;
constexpr char begins[] = "scrypt$15$";

std::string scrypt(std::string_view password, std::string_view salt) {
    std::array<unsigned char, hash_bytes> out;
    constexpr std::uint64_t blocks = 8, lanes = 1, memory = 64ull << 20;
    if (EVP_PBE_scrypt(password.data(), password.size(), reinterpret_cast<const unsigned char*>(salt.data()),
                       salt.size(), 1ull << cost_bits, blocks, lanes, memory, out.data(), out.size()) != 1)
        std::abort(); // no memory
    return hexadecimal({reinterpret_cast<const char*>(out.data()), out.size()});
}

} // namespace

std::string hash_password(std::string_view password, std::string_view salt) {
    const auto text = hexadecimal(salt);
    return begins + text + "$" + scrypt(password, text);
}

bool is_password(std::string_view password, const std::string& hash) {
    const std::string_view kept = hash;
    const bool is_one =
        kept.size() == sizeof begins - 1 + 2 * salt_bytes + 1 + 2 * hash_bytes && kept.starts_with(begins);
    const auto salt = is_one ? kept.substr(sizeof begins - 1, 2 * salt_bytes) : std::string_view("none");
    const auto made = scrypt(password.substr(0, longest_password), salt);
    return is_one && password.size() <= longest_password &&
           same_secret(made, kept.substr(kept.size() - 2 * hash_bytes));
}

std::string digest_of(std::string_view secret) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned size = 0;
    if (EVP_Digest(secret.data(), secret.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
        std::abort(); // no memory
    return hexadecimal({reinterpret_cast<const char*>(digest.data()), size});
}

bool same_secret(std::string_view a, std::string_view b) {
    return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void forget(std::string& secret) {
    OPENSSL_cleanse(secret.data(), secret.size());
    secret.clear();
}

} // namespace kagemusha::control::access
