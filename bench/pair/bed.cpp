// SPDX-License-Identifier: GPL-2.0-or-later
#include "bed.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kagemusha::bench {

namespace {

[[noreturn]] void give_up(const std::string& why) {
    std::fprintf(stderr, "pair_bench: %s\n", why.c_str());
    std::exit(1);
}

} // namespace

double quantile(std::vector<double>& samples, double part) {
    if (samples.empty())
        return 0;
    std::sort(samples.begin(), samples.end());
    return samples[static_cast<std::size_t>(part * static_cast<double>(samples.size() - 1))];
}

bool until(const std::function<bool()>& done, double seconds) {
    const auto start = clock::now();
    while (!done()) {
        if (seconds_since(start) > seconds)
            return false;
        test::host::pump();
    }
    return true;
}

void report::heading(const std::string& text) {
    heading_ = text;
    std::printf("%s\n", text.c_str());
}

void report::figure(const std::string& name, double value, const char* unit) {
    lines_.push_back({heading_, name, unit, value});
    std::printf("  %-62s %12.3f %s\n", name.c_str(), value, unit);
    std::fflush(stdout);
}

bool report::write(const std::string& file) const {
    std::FILE* f = std::fopen(file.c_str(), "w");
    if (!f)
        return false;
    std::fprintf(f, "[\n");
    for (std::size_t i = 0; i < lines_.size(); ++i) {
        const line& l = lines_[i]; // names are ours: nothing to escape
        std::fprintf(f, "  {\"part\": \"%s\", \"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}%s\n",
                     l.heading.c_str(), l.name.c_str(), l.value, l.unit.c_str(),
                     i + 1 < lines_.size() ? "," : "");
    }
    std::fprintf(f, "]\n");
    return std::fclose(f) == 0;
}

kagemusha_device_config config_of(const options& o) {
    kagemusha_device_config c;
    kagemusha_device_config_init(&c);
    c.name = "bench";
    c.backend = o.backend.c_str();
    c.options = o.backend == "null" ? "memory=1" : o.backend_options.c_str();
    c.gpu = o.primary_gpu.c_str();
    c.sandbox = 1;
    c.vm_id = "bench";
    c.heartbeat_budget_ms = 10000; // a slow machine is not what is measured
    c.tls_directory = o.keys.c_str();
    return c;
}

int run_standby(const options& o) {
    kagemusha_device_config c = config_of(o);
    c.gpu = o.standby_gpu.c_str();
    const std::string listen = !o.listen.empty() ? o.listen
                               : o.keys.empty()
                                   ? "unix:/tmp/kagemusha-bench-" + std::to_string(getpid()) + ".link"
                                   : "127.0.0.1:0";
    c.standby_listen = listen.c_str();
    test::host standby(c);
    std::printf("%s\n", kagemusha_device_standby_address(standby.device()));
    std::fflush(stdout);
    pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {kagemusha_device_poll_fd(standby.device()), POLLIN, 0}};
    for (;;) {
        poll(fds, 2, -1);
        if (fds[0].revents != 0) { // whoever started this process has ended it
            const auto s = standby.status();
            if (s.faults != 0) {
                std::fprintf(stderr, "standby: %llu entries failed here and not on the primary\n",
                             static_cast<unsigned long long>(s.faults));
            }
            return 0;
        }
        kagemusha_device_dispatch(standby.device());
    }
}

standby_process::standby_process(const options& o) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        give_up("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl("/proc/self/exe", "pair_bench", "--standby", "--backend", o.backend.c_str(), "--options",
              o.backend_options.c_str(), "--standby-gpu", o.standby_gpu.c_str(), "--listen", o.listen.c_str(),
              "--keys", o.keys.c_str(), nullptr);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
    for (char c; read(from_, &c, 1) == 1 && c != '\n';)
        address_ += c;
    if (pid_ < 0 || address_.empty())
        give_up("the standby's process did not start");
}

standby_process::~standby_process() {
    close(to_);
    close(from_);
    waitpid(pid_, nullptr, 0);
}

protected_guest make_guest(const options& o, protection p, std::uint32_t digest_interval_ms) {
    protected_guest g;
    if (p == protection::standby || p == protection::standby_later) {
        g.standby = std::make_unique<standby_process>(o);
        g.address = g.standby->address();
    }
    kagemusha_device_config c = config_of(o);
    c.digest_interval_ms = digest_interval_ms;
    c.replicable = p == protection::standby_later || p == protection::standby;
    if (p == protection::nobody)
        c.replicate_to = "unix:/nonexistent/kagemusha-standby";
    g.guest = std::make_unique<test::guest>(c, guest_bytes);
    if (p == protection::standby && !g.protect())
        give_up(std::string("no protection: ") + g.guest->status().degraded);
    return g;
}

bool protected_guest::protect() {
    char error[512] = "";
    if (kagemusha_device_replicate_to(guest->device(), address.c_str(), error, sizeof error) != 0)
        give_up(error);
    return until([this] { return guest->is(KAGEMUSHA_REPLICATION_PROTECTING); }, 60);
}

bool protected_guest::wait_executed(double seconds) const {
    return until(
        [this] {
            const auto s = guest->status();
            return s.executed == s.appended && s.lag_entries == 0;
        },
        seconds);
}

} // namespace kagemusha::bench
