// SPDX-License-Identifier: GPL-2.0-or-later
//
// What tests of the arbiters share.
#pragma once

#include "control/arbiter/arbiter.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <unistd.h>

namespace kagemusha::control::test {

class temporary_directory {
public:
    temporary_directory() {
        auto name = (std::filesystem::temp_directory_path() / "kagemusha-arbiter-XXXXXX").string();
        if (!::mkdtemp(name.data()))
            ADD_FAILURE() << "no temporary directory";
        path = name;
    }
    ~temporary_directory() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    std::string path;
};

inline ha::arbiter_request request(ha::arbiter_request::kind what, std::uint64_t term = 0,
                                   std::uint64_t new_term = 0) {
    return {what, 1, term, new_term, false, false};
}

// Asks and waits for the answer.
class asker {
public:
    arbiter_answers answers() {
        return [this](ha::arbiter_answer a) { answer_.set_value(std::move(a)); };
    }
    ha::arbiter_answer ask(arbiter& a, ha::arbiter_request r) {
        answer_ = {};
        auto future = answer_.get_future();
        a.ask(r);
        return future.get();
    }

private:
    std::promise<ha::arbiter_answer> answer_;
};

} // namespace kagemusha::control::test
