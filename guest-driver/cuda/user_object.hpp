// SPDX-License-Identifier: GPL-2.0-or-later
//
// User objects: what a program wants to be told of when no graph needs it any more. References are the program's,
// a graph's or those of something instantiated; a launch that is under way has some, too.
#pragma once

#include "work.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace kagemusha::cuda {

struct user_object;

// References that one owner has. Any thread may let go of them: the program's function is called by another.
class user_references {
public:
    user_references() = default;
    ~user_references();
    user_references(const user_references&) = delete;
    user_references& operator=(const user_references&) = delete;

    bool empty() const { return counts_.empty(); }
    // As many again as the other owner has.
    void add(const user_references& other);
    // With `from_program` they are the program's, which no longer has them. False: it has not so many.
    bool add(user_object& what, std::uint64_t count, bool from_program);
    // False: there are not so many.
    bool remove(user_object& what, std::uint64_t count);

private:
    std::map<user_object*, std::uint64_t> counts_;
};

// Keeps references until what was asked of the stream before is done.
struct hold_work final : work {
    explicit hold_work(std::shared_ptr<const user_references> r) : references(std::move(r)) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUresult run(stream& where) override;
    std::unique_ptr<work> copy() const override { return std::make_unique<hold_work>(*this); }

    std::shared_ptr<const user_references> references;
};

} // namespace kagemusha::cuda
