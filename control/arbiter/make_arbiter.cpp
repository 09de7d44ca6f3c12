// SPDX-License-Identifier: GPL-2.0-or-later
//
// See arbiter.hpp.
#include "control/arbiter/etcd_arbiter.hpp"
#include "control/arbiter/fence_arbiter.hpp"
#include "control/arbiter/lock_arbiter.hpp"

namespace kagemusha::control {

namespace {

// Of a VM that nobody protects: it may always run, and nobody takes it over.
class no_arbiter final : public arbiter {
public:
    explicit no_arbiter(arbiter_answers answer) : answer_(std::move(answer)) {}
    void ask(const ha::arbiter_request& request) override {
        if (request.what == ha::arbiter_request::kind::pair ||
            request.what == ha::arbiter_request::kind::claim)
            answer_({ha::arbiter_answer::verdict::refused, request.number, 0, 0, "the VM has no arbiter"});
        else
            answer_({ha::arbiter_answer::verdict::granted, request.number, 1, UINT64_MAX, {}});
    }

private:
    arbiter_answers answer_;
};

} // namespace

std::unique_ptr<arbiter> make_arbiter(const described_arbiter& described, const arbiter_identity& identity,
                                      arbiter_answers answer, std::string& error) {
    switch (described.what) {
    case described_arbiter::kind::none:
        return std::make_unique<no_arbiter>(std::move(answer));
    case described_arbiter::kind::lock:
        return lock_arbiter::open(described.path, described.lease_ms, identity, std::move(answer), error);
    case described_arbiter::kind::etcd:
        return std::make_unique<etcd_arbiter>(described, identity, std::move(answer));
    case described_arbiter::kind::fence: {
        if (error = why_not_durable(described.path); !error.empty())
            return nullptr;
        auto file = fence_file::open(described.path, identity.vm, error);
        if (!file)
            return nullptr;
        return std::make_unique<fence_arbiter>(fence_commands{described.command, described.check_command},
                                               fence_rules{described.delay_ms, described.give_up_ms},
                                               std::move(*file), identity, std::move(answer));
    }
    }
    return nullptr;
}

} // namespace kagemusha::control
