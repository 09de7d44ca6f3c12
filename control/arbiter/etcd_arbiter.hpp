// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter in an etcd cluster (etcd_client): it keeps
//
//   /kagemusha/VM/state    "TERM paired|alone OWNER": stays
//   /kagemusha/VM/holder   "OWNER", bound to the holder's etcd lease: goes with it
//
// Each change is one transaction that names the revision of the state that was read (and, for a claim without
// proof, that there is no holder). An etcd lease never ends before its time to live has passed since the
// server got the last keepalive, so the supervisor counts it from before it sent that. What was read or
// written last is known, so a change is one round trip, and one more for a lease when there is none.
#pragma once

#include "control/arbiter/etcd_client.hpp"
#include "control/arbiter/etcd_record.hpp"
#include "control/arbiter/worker_arbiter.hpp"

#include <optional>

namespace kagemusha::control {

class etcd_arbiter final : public worker_arbiter {
public:
    etcd_arbiter(const described_arbiter& described, const arbiter_identity& identity,
                 arbiter_answers answer);
    ~etcd_arbiter() override { stop(); }

private:
    ha::arbiter_answer decide(const ha::arbiter_request& request) override;
    ha::arbiter_answer change(const ha::arbiter_request& request);
    ha::arbiter_answer renew(const ha::arbiter_request& request);
    ha::arbiter_answer unreachable() const;
    std::optional<etcd_record> state_in(const nlohmann::json& answer);
    std::optional<etcd_record> read();
    bool have_lease();
    bool put(const etcd_put& wanted, bool& done);

    etcd_client etcd_;
    const std::uint64_t ttl_s_; // of our leases
    const arbiter_identity identity_;
    const std::string state_key_, holder_key_; // in base64
    std::optional<etcd_record> known_;         // as it was read or written last
    std::string lease_;                        // etcd's number of ours; "": none
    std::uint64_t lease_until_ms_ = 0;
    std::string problem_; // with an answer that came
};

} // namespace kagemusha::control
