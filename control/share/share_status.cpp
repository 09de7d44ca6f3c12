// SPDX-License-Identifier: GPL-2.0-or-later
//
// See share_status.hpp.
#include "control/share/share_status.hpp"

#include "base/gibibytes.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/share/gpu_of_host.hpp"
#include "share/core/policy.hpp"
#include "share/core/terms.hpp"
#include "worker/share_join.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr int top_period_ms = 1000;
constexpr int row_within_ms = 1000;

template <class Row>
bool read_row(worker::joined_share& joined, Row& row) {
    pollfd event{joined.socket.get(), POLLIN, 0};
    if (::poll(&event, 1, row_within_ms) != 1 ||
        ::recv(joined.socket.get(), &row, sizeof row, 0) != static_cast<ssize_t>(sizeof row))
        return false;
    row.vm[sizeof row.vm - 1] = '\0';
    return true;
}

bool read_rows(worker::joined_share& joined, shared_gpu& out) {
    for (std::uint32_t i = 0; i < joined.answer.rows && i < share::max_vms; ++i) {
        shared_vm vm;
        if (!read_row(joined, vm.row))
            return false;
        out.vms.push_back(vm);
    }
    for (std::uint32_t i = 0; i < joined.answer.programs && i < SHARE_MAX_PROGRAM_ROWS; ++i) {
        shared_program program;
        if (!read_row(joined, program.row))
            return false;
        for (auto& vm : out.vms)
            if (std::string_view(vm.row.vm) == program.row.vm)
                vm.programs.push_back(program);
    }
    return true;
}

// Nothing where a counter went backwards: it is of another one under that name.
template <class User> // a VM or a program
void set_rates(User& now, const User& old, double ns) {
    if (now.row.gpu_ns < old.row.gpu_ns || now.row.waited_ns < old.row.waited_ns ||
        now.row.tasks < old.row.tasks)
        return;
    now.got = static_cast<double>(now.row.gpu_ns - old.row.gpu_ns) / ns;
    now.waited = static_cast<double>(now.row.waited_ns - old.row.waited_ns) / ns;
    now.tasks_per_s = static_cast<double>(now.row.tasks - old.row.tasks) / ns * 1e9;
}

// Drivers take their time, so they are asked once for a GPU that nobody knows.
void name_gpus(std::vector<shared_gpu>& gpus) {
    static std::mutex mutex;
    static std::map<std::string, std::string> known; // by the socket's file
    const std::lock_guard lock(mutex);
    if (std::ranges::any_of(gpus, [](const shared_gpu& gpu) { return !known.contains(gpu.name); })) {
        std::string error;
        for (const auto& gpu : gpus_of_host(std::nullopt, error))
            known[share_socket_name(gpu)] = gpu.name;
    }
    for (auto& gpu : gpus)
        gpu.name = known.try_emplace(gpu.name, gpu.name).first->second;
}

const char* phase_word(std::uint32_t phase) {
    switch (static_cast<share::vm_phase>(phase)) {
    case share::vm_phase::idle:
        return "idle";
    case share::vm_phase::waiting:
        return "waits";
    case share::vm_phase::running:
    case share::vm_phase::leaving:
        return "runs";
    case share::vm_phase::stuck:
        return "stuck";
    }
    return "?";
}

std::string percent(std::uint32_t permille) {
    return permille % 10 == 0 ? fmt::format("{}", permille / 10)
                              : fmt::format("{}.{}", permille / 10, permille % 10);
}

std::string seconds(std::uint64_t ns) {
    return fmt::format("{:.1f} s", static_cast<double>(ns) * 1e-9);
}

std::string amount(std::uint64_t bytes) {
    return bytes == 0 ? std::string("-") : gibibytes(bytes);
}

} // namespace

std::vector<shared_gpu> read_shared_gpus(bool names, bool programs) {
    std::vector<shared_gpu> out;
    std::string error;
    const auto directory = share_directory(error);
    std::error_code failed;
    for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end;
         entry.increment(failed)) {
        if (!entry->is_socket(failed))
            continue;
        share_hello asks{};
        asks.magic = SHARE_MAGIC;
        asks.version = SHARE_VERSION;
        asks.role = SHARE_ASKER;
        asks.flags = programs ? SHARE_ASKS_PROGRAMS : 0;
        auto joined = worker::join_share(entry->path().string(), asks);
        if (!joined.refusal.empty())
            continue; // it ended, or is of another release
        shared_gpu gpu;
        gpu.name = entry->path().filename().string();
        gpu.policy = share::name_of(static_cast<share::policy_kind>(joined.answer.policy));
        gpu.memory_bytes = joined.answer.gpu_memory_bytes;
        gpu.now_ns = joined.answer.now_ns;
        if (read_rows(joined, gpu))
            out.push_back(std::move(gpu));
    }
    if (names)
        name_gpus(out);
    return out;
}

void set_shared_rates(std::vector<shared_gpu>& now, const std::vector<shared_gpu>& before) {
    for (auto& gpu : now)
        for (const auto& old_gpu : before) {
            if (old_gpu.name != gpu.name || gpu.now_ns <= old_gpu.now_ns)
                continue;
            const auto ns = static_cast<double>(gpu.now_ns - old_gpu.now_ns);
            for (auto& vm : gpu.vms)
                for (const auto& old : old_gpu.vms) {
                    if (std::string_view(old.row.vm) != vm.row.vm)
                        continue;
                    set_rates(vm, old, ns);
                    for (auto& program : vm.programs)
                        for (const auto& old_program : old.programs)
                            if (old_program.row.worker == program.row.worker)
                                set_rates(program, old_program, ns);
                }
        }
}

std::string shared_text(std::vector<shared_gpu> gpus, bool programs) {
    std::string out;
    for (auto& gpu : gpus) {
        std::ranges::sort(gpu.vms, [](const shared_vm& a, const shared_vm& b) {
            return a.got != b.got ? a.got > b.got : a.row.gpu_ns > b.row.gpu_ns;
        });
        out += fmt::format("{}, shared by {} VM{}, policy {}{}\n", as_log_line(gpu.name), gpu.vms.size(),
                           gpu.vms.size() == 1 ? "" : "s", gpu.policy,
                           gpu.memory_bytes == 0 ? "" : ", " + amount(gpu.memory_bytes));
        out +=
            fmt::format("  {:<24} {:>5} {:>6} {:>6} {:>5} {:>5} {:>8} {:>9} {:>10} {:>10} {:>8} {:>9}  {}\n",
                        "VM", "ASKED", "GOT %", "WAIT %", "CAP", "PRIO", "TASKS/s", "MEMORY", "GPU TIME",
                        "WAITED", "TURNS", "LONGEST", "STATE");
        for (const auto& vm : gpu.vms) {
            const auto& r = vm.row;
            out += fmt::format("  {:<24} {:>5} {:>6.1f} {:>6.1f} {:>5} {:>5} {:>8.0f} {:>9} {:>10} {:>10} "
                               "{:>8} {:>6.1f} ms  {}{}\n",
                               as_log_line(r.vm), r.share_permille == 0 ? "-" : percent(r.share_permille),
                               100 * vm.got, 100 * vm.waited, percent(r.cap_permille), r.priority,
                               vm.tasks_per_s, amount(r.memory_bytes), seconds(r.gpu_ns),
                               seconds(r.waited_ns), r.turns, static_cast<double>(r.longest_turn_ns) * 1e-6,
                               phase_word(r.phase), r.standby != 0 ? ", standby" : "");
            if (!programs)
                continue;
            for (const auto& program : vm.programs)
                out +=
                    fmt::format("  {:<24} {:>5} {:>6.1f} {:>6.1f} {:>5} {:>5} {:>8.0f} {:>9} {:>10} {:>10}\n",
                                fmt::format("  worker {}", program.row.worker), "", 100 * program.got,
                                100 * program.waited, "", "", program.tasks_per_s, "",
                                seconds(program.row.gpu_ns), seconds(program.row.waited_ns));
        }
    }
    return out;
}

nlohmann::json shared_json(const std::vector<shared_gpu>& gpus) {
    auto out = nlohmann::json::array();
    for (const auto& gpu : gpus) {
        auto vms = nlohmann::json::array();
        for (const auto& vm : gpu.vms) {
            const auto& r = vm.row;
            auto programs = nlohmann::json::array();
            for (const auto& program : vm.programs)
                programs.push_back({{"worker", program.row.worker},
                                    {"waits", program.row.waits != 0},
                                    {"got", program.got},
                                    {"waited", program.waited},
                                    {"tasks_per_s", program.tasks_per_s},
                                    {"gpu_ns", program.row.gpu_ns},
                                    {"waited_ns", program.row.waited_ns},
                                    {"tasks", program.row.tasks}});
            vms.push_back({{"vm", r.vm},
                           {"state", phase_word(r.phase)},
                           {"standby", r.standby != 0},
                           {"programs", r.sessions},
                           {"program_accounts", programs},
                           {"share_permille", r.share_permille},
                           {"weight_permille", r.weight_permille},
                           {"cap_permille", r.cap_permille},
                           {"priority", r.priority},
                           {"memory_bytes", r.memory_bytes},
                           {"got", vm.got},
                           {"waited", vm.waited},
                           {"tasks_per_s", vm.tasks_per_s},
                           {"gpu_ns", r.gpu_ns},
                           {"held_ns", r.held_ns},
                           {"waited_ns", r.waited_ns},
                           {"longest_turn_ns", r.longest_turn_ns},
                           {"turns", r.turns},
                           {"tasks", r.tasks},
                           {"times_stuck", r.times_stuck}});
        }
        out.push_back({{"gpu", gpu.name},
                       {"policy", gpu.policy},
                       {"memory_bytes", gpu.memory_bytes},
                       {"now_ns", gpu.now_ns},
                       {"vms", vms}});
    }
    return out;
}

int run_top(const top_options& options) {
    const bool screen = !options.json && !options.once && ::isatty(STDOUT_FILENO);
    const bool programs = options.programs || options.json;
    auto before = read_shared_gpus(true, programs);
    for (;;) {
        pollfd interrupted{interrupt_fd(), POLLIN, 0};
        ::poll(&interrupted, 1, top_period_ms);
        if (interrupted_by())
            return 0;
        auto now = read_shared_gpus(true, programs);
        set_shared_rates(now, before);
        auto text = options.json ? as_json_text(shared_json(now)) + "\n" : shared_text(now, options.programs);
        if (text.empty())
            text = "No GPU of this user is shared: give VMs a share in their descriptions ([gpu] share).\n";
        if (screen)
            text = "\x1b[H\x1b[2J" + text; // home, and nothing on it
        if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0 ||
            options.once)
            return 0;
        before = std::move(now);
    }
}

} // namespace kagemusha::control
