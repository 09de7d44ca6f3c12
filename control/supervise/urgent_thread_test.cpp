// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a thread gets, on this host and where nothing is allowed. In processes of their own: locked memory is
// the process's.
#include "control/supervise/urgent_thread.hpp"

#include <gtest/gtest.h>

#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace kagemusha::control {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool locks = false; // their mlockall() does nothing
#else
constexpr bool locks = true;
#endif

// The exit status of a process that runs `body`.
template <class Body>
int in_a_process(Body&& body) {
    const pid_t child = fork();
    if (child == 0)
        _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

unsigned long locked_kib() {
    std::ifstream file("/proc/self/status");
    for (std::string word; file >> word;)
        if (word == "VmLck:") {
            unsigned long kib = 0;
            file >> kib;
            return kib;
        }
    return 0;
}

TEST(urgent_thread, has_what_it_says_and_hands_nothing_on) {
    EXPECT_EQ(in_a_process([] {
                  int wrong = 0;
                  const int before = getpriority(PRIO_PROCESS, 0); // somebody may run the tests at -5
                  std::thread([&] {
                      const urgency got = become_urgent();
                      const int policy = sched_getscheduler(0);
                      const int nice = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
                      wrong += ((policy & ~SCHED_RESET_ON_FORK) == SCHED_RR) != got.real_time ? 1 : 0;
                      wrong += (nice < std::min(before, 0)) != got.nice ? 2 : 0;
                      wrong += locks && (locked_kib() != 0) != got.locked ? 4 : 0;
                      wrong += got.complaint().empty() != (got.real_time && got.locked) ? 8 : 0;
                      wrong += in_a_process([] { // as QEMU, or a command that cuts a host off
                                   return sched_getscheduler(0) == SCHED_OTHER &&
                                                  getpriority(PRIO_PROCESS, 0) >= 0 && locked_kib() == 0
                                              ? 0
                                              : 1;
                               }) != 0
                                   ? 16
                                   : 0;
                  }).join();
                  // The other threads are what they were.
                  wrong += sched_getscheduler(0) != SCHED_OTHER ? 32 : 0;
                  return wrong;
              }),
              0);
}

TEST(urgent_thread, goes_without_where_the_host_allows_nothing) {
    EXPECT_EQ(in_a_process([] {
                  for (const auto resource : {RLIMIT_RTPRIO, RLIMIT_NICE, RLIMIT_MEMLOCK}) {
                      const rlimit nothing{0, 0};
                      setrlimit(resource, &nothing);
                  }
                  if (geteuid() == 0 &&
                      (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
                      return 64;
                  const urgency got = become_urgent();
                  const std::string text = got.complaint();
                  return (got.real_time ? 1 : 0) + (got.nice ? 2 : 0) + (got.locked ? 4 : 0) +
                         (text.find("ordinary priority") == text.npos ? 8 : 0) +
                         (text.find("swapped out") == text.npos ? 16 : 0);
              }),
              0);
}

TEST(urgent_thread, says_what_is_missing_and_how_to_allow_it) {
    EXPECT_EQ((urgency{true, false, true}.complaint()), "");
    EXPECT_EQ(
        (urgency{true, false, false}.complaint()),
        "the supervisor's memory may be swapped out (allow to lock it with LimitMEMLOCK=infinity): on a "
        "busy host a healthy VM may look dead");
    EXPECT_NE((urgency{false, true, true}.complaint()).find("only a negative nice value"), std::string::npos);
}

} // namespace
} // namespace kagemusha::control
