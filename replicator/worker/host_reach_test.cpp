// SPDX-License-Identifier: GPL-2.0-or-later
// Which GPUs are refused, and what is read from the host, with a library in libcuda's place.
#include "worker/host_reach.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kagemusha::worker {
namespace {

gpu_reach gpu(const char* name, bool pageable, bool host_page_tables) {
    gpu_reach made{};
    made.pageable = pageable;
    made.host_page_tables = host_page_tables;
    std::strncpy(made.name, name, sizeof made.name - 1);
    return made;
}

TEST(decide_reach, a_host_without_nvidia_has_nothing_to_ask) {
    EXPECT_EQ(decide_reach({}).what, reach::own_memory);
}

// What an H200 with driver 580 said: Addressing Mode None, pageable access 0.
TEST(decide_reach, a_gpu_that_reaches_what_it_was_given_is_taken) {
    reach_facts facts{true, std::vector{gpu("H200", false, false)}, "", std::nullopt};
    EXPECT_EQ(decide_reach(facts).what, reach::own_memory);
    facts.gpus->clear();
    EXPECT_EQ(decide_reach(facts).what, reach::own_memory);
}

TEST(decide_reach, hmm_and_ats_are_refused_with_what_to_do) {
    reach_facts facts{true, std::vector{gpu("A", false, false), gpu("B", true, false)}, "", std::nullopt};
    const auto hmm = decide_reach(facts);
    EXPECT_EQ(hmm.what, reach::all_memory);
    EXPECT_EQ(hmm.sentence.find("B can use all memory of a process (HMM)"), 0u) << hmm.sentence;
    EXPECT_NE(hmm.sentence.find("uvm_disable_hmm=1"), std::string::npos);
    facts.gpus = std::vector{gpu("GH200", true, true)};
    const auto ats = decide_reach(facts);
    EXPECT_EQ(ats.what, reach::all_memory);
    EXPECT_NE(ats.sentence.find("ATS"), std::string::npos);
    EXPECT_EQ(ats.sentence.find("uvm_disable_hmm"), std::string::npos);
    // The parameter is about HMM only, and what the driver says counts.
    facts.hmm_disabled = true;
    EXPECT_EQ(decide_reach(facts).what, reach::all_memory);
}

TEST(decide_reach, a_driver_that_does_not_answer_is_unknown_unless_hmm_is_off) {
    reach_facts facts{true, std::nullopt, "libcuda did not answer", std::nullopt};
    const auto unknown = decide_reach(facts);
    EXPECT_EQ(unknown.what, reach::unknown);
    EXPECT_NE(unknown.sentence.find("because libcuda did not answer"), std::string::npos);
    facts.hmm_disabled = false;
    EXPECT_EQ(decide_reach(facts).what, reach::unknown);
    facts.hmm_disabled = true;
    EXPECT_EQ(decide_reach(facts).what, reach::own_memory);
}

// LD_LIBRARY_PATH of this test names the folder of the library in libcuda's place (fake_libcuda.c), which
// says what $KAGEMUSHA_FAKE_CUDA says.
struct asked_host : ::testing::Test {
    std::string root = "/tmp/kagemusha-host-reach-" + std::to_string(getpid());

    asked_host() {
        std::filesystem::create_directories(root + "/dev");
        std::filesystem::create_directories(root + "/sys/module/nvidia_uvm/parameters");
        std::ofstream(root + "/dev/nvidiactl") << "";
    }
    ~asked_host() override { std::filesystem::remove_all(root); }

    reach_facts ask(const char* what) const {
        setenv("KAGEMUSHA_FAKE_CUDA", what, 1);
        return ask_host(root);
    }
};

TEST_F(asked_host, says_what_the_driver_says) {
    const auto facts = ask("none");
    ASSERT_TRUE(facts.gpus) << facts.not_answered;
    ASSERT_EQ(facts.gpus->size(), 2u);
    EXPECT_EQ(decide_reach(facts).what, reach::own_memory);
    const auto hmm = decide_reach(ask("hmm"));
    EXPECT_EQ(hmm.what, reach::all_memory);
    EXPECT_EQ(hmm.sentence.find("fake GPU 1 can use"), 0u) << hmm.sentence;
    EXPECT_NE(decide_reach(ask("ats")).sentence.find("ATS"), std::string::npos);
}

TEST_F(asked_host, a_driver_that_fails_or_dies_does_not_answer) {
    EXPECT_EQ(ask("error").not_answered, "libcuda answered with error 999");
    EXPECT_EQ(ask("crash").not_answered, "libcuda did not answer");
    EXPECT_TRUE(ask("no GPU").gpus);
}

TEST_F(asked_host, reads_the_modules_parameter) {
    EXPECT_FALSE(ask("error").hmm_disabled);
    const std::string file = root + "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm";
    std::ofstream(file) << "N\n";
    EXPECT_EQ(ask("error").hmm_disabled, false);
    std::ofstream(file) << "Y\n";
    EXPECT_EQ(ask("error").hmm_disabled, true);
}

TEST_F(asked_host, without_nvidias_nodes_nobody_is_asked) {
    std::filesystem::remove(root + "/dev/nvidiactl");
    EXPECT_FALSE(ask("crash").nvidia);
}

} // namespace
} // namespace kagemusha::worker
