// SPDX-License-Identifier: GPL-2.0-or-later
// When workers are asked for what their compilers made, and what is told in which order.
#include "mirror/capture/built_programs.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "codec/decode.hpp"

namespace kagemusha::mirror {
namespace {

// A device whose workers the test answers for.
struct device final : core::mirror_port {
    struct injected {
        std::uint32_t file;
        std::uint64_t token;
        std::uint32_t flags;
    };
    std::vector<injected> requests;
    std::vector<std::uint32_t> kept;
    bool has_worker = true;

    bool inject(std::uint32_t file, const worker::request_view& r) override {
        if (!has_worker)
            return false;
        codec::stream_decoder decoder(r.stream, {r.payloads});
        codec::op o;
        EXPECT_EQ(decoder.next(o), codec::decode_status::op);
        const auto& take = std::get<codec::op_built>(o);
        EXPECT_TRUE(take.take());
        EXPECT_EQ(take.data.bytes, max_built_pack_bytes);
        requests.push_back({file, r.token, take.c->flags});
        return true;
    }
    const core::object_table* objects(std::uint32_t) const override { return nullptr; }
    void release_answer(std::uint32_t, std::uint64_t) override {}
    void release_records(std::uint32_t) override {}
    void hold_requests(std::uint32_t) override {}
    void release_requests(std::uint32_t) override {}
    void keep_until_gone(std::uint32_t file, std::shared_ptr<const void>) override { kept.push_back(file); }
    void lose_session(std::uint32_t, std::uint32_t, const std::string&) override {}
    void set_tick_period(std::uint32_t) override {}
};

struct log final : log_sink {
    std::string told;
    log_sequence append(log_entry) override { return 0; }
    bool congested() const override { return false; }
    void outcome(log_sequence entry, std::int32_t result) override {
        told += "outcome " + std::to_string(entry) + " " + std::to_string(result) + "; ";
    }
    void late_content(log_sequence, std::uint32_t, byte_pieces) override {}
    void cancel(log_sequence) override {}
    void digests(log_sequence, std::vector<std::uint64_t>) override {}
    bool release_content(log_sequence) override { return true; }
    void synced(log_sequence) override {}
    void failed(const std::string&) override {}
    void built(std::uint32_t file, std::shared_ptr<const std::vector<std::byte>> pack) override {
        told += "built " + std::to_string(file) + " " + std::to_string(pack->size()) + "B; ";
    }
};

struct memory final : agent_memory {
    std::vector<std::shared_ptr<std::vector<std::byte>>> blocks; // newest last
    std::size_t most = 100;
    bool allocate(std::uint64_t bytes, block& out) override {
        if (blocks.size() == most)
            return false;
        blocks.push_back(std::make_shared<std::vector<std::byte>>(bytes, std::byte{0xff}));
        out.segment = {0, bytes, 3, 0};
        out.bytes = *blocks.back();
        out.keep = blocks.back();
        return true;
    }
    std::uint64_t capacity() const override { return 0; }
};

struct built_programs_test : testing::Test {
    device dev;
    log out;
    memory mem;
    built_programs built{dev, out, &mem};

    // What the worker writes, for the last request.
    void pack(std::uint64_t bytes, std::uint32_t files = 1, std::uint32_t more = 0) const {
        const vgpu_built head{bytes, files, more};
        std::memcpy(mem.blocks.back()->data(), &head, sizeof(head));
    }
    std::string answer(std::uint32_t status = VGPU_STATUS_OK) {
        vgpu_response r{};
        r.status = status;
        const device::injected last = dev.requests.back();
        EXPECT_TRUE(built.on_done(last.file, last.token, r));
        return std::exchange(out.told, {});
    }
};

TEST_F(built_programs_test, a_pack_is_told_before_the_outcome_of_its_build) {
    built.start(true);
    built.on_build(1, 77);
    ASSERT_EQ(dev.requests.size(), 1u);
    EXPECT_EQ(dev.requests[0].flags, 0u);
    EXPECT_TRUE(built.hold_outcome(1, 77, 5, 0));
    EXPECT_EQ(out.told, "");
    pack(4096);
    EXPECT_EQ(answer(), "built 1 4096B; outcome 5 0; ");
    EXPECT_FALSE(built.hold_outcome(1, 78, 6, 0)) << "of a call that builds nothing";
}

TEST_F(built_programs_test, what_has_more_is_asked_again) {
    built.start(true);
    built.on_build(1, 77);
    EXPECT_TRUE(built.hold_outcome(1, 77, 5, -11));
    pack(4096, 3, 1);
    EXPECT_EQ(answer(), "built 1 4096B; ");
    ASSERT_EQ(dev.requests.size(), 2u);
    pack(sizeof(vgpu_built), 0);
    EXPECT_EQ(answer(), "outcome 5 -11; ") << "nothing is no pack";
}

TEST_F(built_programs_test, a_state_transfer_wants_everything) {
    built.start(true);
    built.take_everything(2);
    ASSERT_EQ(dev.requests.size(), 1u);
    EXPECT_EQ(dev.requests[0].flags, VGPU_BUILT_ALL);
    pack(max_built_pack_bytes, 9, 1);
    EXPECT_EQ(answer(), "built 2 " + std::to_string(max_built_pack_bytes) + "B; ");
    EXPECT_EQ(dev.requests.back().flags, 0u) << "the rest";
}

TEST_F(built_programs_test, a_worker_that_lies_gives_nothing) {
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{sizeof(vgpu_built)},
                                      max_built_pack_bytes + 1, UINT64_MAX}) {
        built.start(true);
        built.on_build(1, 77);
        EXPECT_TRUE(built.hold_outcome(1, 77, 5, 0));
        pack(bytes, 1, 1);
        EXPECT_EQ(answer(), "outcome 5 0; ") << bytes;
    }
    built.on_build(1, 77);
    EXPECT_TRUE(built.hold_outcome(1, 77, 5, 0));
    EXPECT_EQ(answer(), "outcome 5 0; ") << "it wrote nothing";
    built.on_build(1, 77);
    EXPECT_TRUE(built.hold_outcome(1, 77, 5, 0));
    pack(4096);
    EXPECT_EQ(answer(VGPU_STATUS_MALFORMED), "outcome 5 0; ");
}

TEST_F(built_programs_test, what_can_not_be_taken_holds_nothing_up) {
    const auto builds = [&](std::uint32_t file, std::uint64_t token) {
        built.on_build(file, token);
        return built.hold_outcome(file, token, 5, 0);
    };
    EXPECT_FALSE(builds(1, 1)) << "no standby";
    built.start(false);
    EXPECT_FALSE(builds(1, 1)) << "one with another GPU";
    built.start(true);
    dev.has_worker = false;
    EXPECT_FALSE(builds(1, 1)) << "nobody builds";
    dev.has_worker = true;
    unsigned taken = 0;
    for (std::uint64_t token = 10; token < 20; ++token)
        taken += builds(1, token);
    EXPECT_EQ(taken, max_built_takes_per_file);
    for (std::uint32_t file = 2; file < 20; ++file)
        taken += builds(file, 1);
    EXPECT_EQ(taken, max_built_takes);
    built_programs without(dev, out, nullptr);
    without.start(true);
    without.on_build(1, 1);
    EXPECT_FALSE(without.hold_outcome(1, 1, 5, 0));
    mem.most = mem.blocks.size();
    built_programs full(dev, out, &mem);
    full.start(true);
    full.on_build(1, 1);
    EXPECT_FALSE(full.hold_outcome(1, 1, 5, 0)) << "no memory";
}

TEST_F(built_programs_test, the_end_of_a_file_or_of_the_mirror_ends_it) {
    built.start(true);
    built.on_build(1, 77);
    EXPECT_TRUE(built.hold_outcome(1, 77, 5, 0));
    built.end_file(1);
    EXPECT_EQ(dev.kept, std::vector<std::uint32_t>{1}) << "its worker may still write";
    EXPECT_EQ(std::exchange(out.told, {}), "outcome 5 0; ");
    EXPECT_EQ(answer(), "") << "of a file that is gone";

    built.on_build(2, 78);
    EXPECT_TRUE(built.hold_outcome(2, 78, 6, 0));
    built.stop();
    pack(4096);
    EXPECT_EQ(answer(), "") << "nobody wants it";
    EXPECT_FALSE(built.on_done(2, 1, {})) << "the agents' own";
}

} // namespace
} // namespace kagemusha::mirror
