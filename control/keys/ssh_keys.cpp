// SPDX-License-Identifier: GPL-2.0-or-later
//
// See ssh_keys.hpp. The formats: RFC 8709 (public keys), OpenSSH's PROTOCOL.key (private ones).
#include "control/keys/ssh_keys.hpp"

#include "control/base/base64.hpp"
#include "net/openssl_ptr.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace kagemusha::control {

namespace {

constexpr char algorithm[] = "ssh-ed25519";
constexpr std::size_t key_bytes = 32, line_characters = 70, block_bytes = 8;

void put_number(std::string& out, std::size_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
        out += static_cast<char>(value >> shift & 0xff);
}

void put_text(std::string& out, std::string_view text) {
    put_number(out, text.size());
    out += text;
}

std::string as_file(std::string_view bytes) {
    const auto text = to_base64(bytes);
    std::string out = "-----BEGIN OPENSSH PRIVATE KEY-----\n";
    for (std::size_t at = 0; at < text.size(); at += line_characters)
        out += text.substr(at, line_characters) + "\n";
    return out + "-----END OPENSSH PRIVATE KEY-----\n";
}

} // namespace

ssh_key ssh_key_of(std::string_view secret, std::string_view purpose) {
    const auto message = "kagemusha ssh key " + std::string(purpose);
    std::array<unsigned char, EVP_MAX_MD_SIZE> seed{};
    unsigned size = 0;
    std::array<unsigned char, key_bytes> point{};
    std::size_t point_size = point.size();
    if (!HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
              reinterpret_cast<const unsigned char*>(message.data()), message.size(), seed.data(), &size) ||
        size != key_bytes)
        std::abort(); // no memory
    const net::key_ptr key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), key_bytes));
    if (!key || EVP_PKEY_get_raw_public_key(key.get(), point.data(), &point_size) != 1 ||
        point_size != key_bytes)
        std::abort(); // as above
    const std::string public_part(reinterpret_cast<const char*>(point.data()), key_bytes);
    const std::string private_part(reinterpret_cast<const char*>(seed.data()), key_bytes);

    std::string blob;
    put_text(blob, algorithm);
    put_text(blob, public_part);

    std::string inside;
    // Two equal numbers, by which a reader knows that he has deciphered it; nothing is enciphered here.
    for (int i = 0; i < 2; ++i)
        put_number(inside, 0x6b616765);
    inside += blob;
    put_text(inside, private_part + public_part);
    put_text(inside, purpose);
    for (char pad = 1; inside.size() % block_bytes != 0; ++pad)
        inside += pad;

    std::string file("openssh-key-v1\0", 15);
    put_text(file, "none"); // cipher
    put_text(file, "none"); // key derivation
    put_text(file, "");     // and its options
    put_number(file, 1);
    put_text(file, blob);
    put_text(file, inside);
    return {std::string(algorithm) + " " + to_base64(blob), as_file(file)};
}

} // namespace kagemusha::control
