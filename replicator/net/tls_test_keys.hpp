// SPDX-License-Identifier: GPL-2.0-or-later
// Keys of clusters for tests of TLS, made by what `kage keys` calls.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "control/keys/certificates.hpp"
#include "control/keys/keys.hpp"
#include "net/test_helpers.hpp"
#include "net/tls.hpp"

namespace kagemusha::net::test {

inline constexpr link_part qemu = link_part::qemu, supervisor = link_part::supervisor;

// Made once: they are only read.
struct cluster {
    static const cluster& get() {
        static const cluster one;
        return one;
    }
    cluster() {
        make("good", {{"alpha"}, {"beta"}}, {"web", "db"});
        make("other", {{"alpha"}}, {"web"});
    }
    void make(const std::string& name, const std::vector<std::vector<std::string>>& hosts,
              const std::vector<std::string>& vms, std::uint32_t days = 10, std::uint32_t ca_days = 10,
              std::int64_t starts_in_s = -3600) const {
        control::keys_request request;
        request.directory = directory.path() + "/" + name;
        request.hosts = hosts;
        request.vms = vms;
        request.days = days;
        request.ca_days = ca_days;
        request.starts_in_s = starts_in_s;
        EXPECT_EQ(control::make_keys(request).error, "");
    }
    std::string of(const std::string& cluster, const std::string& host, const std::string& vm = "web",
                   link_part part = qemu) const {
        return keys_directory(directory.path() + "/" + cluster + "/" + host, vm, part);
    }
    temporary_directory directory;
};

inline std::string good(const std::string& host, const std::string& vm = "web", link_part part = qemu) {
    return cluster::get().of("good", host, vm, part);
}

#define EXPECT_SAYS(text, part) EXPECT_PRED_FORMAT2(testing::IsSubstring, part, text)

} // namespace kagemusha::net::test
