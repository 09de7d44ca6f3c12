// SPDX-License-Identifier: GPL-2.0-or-later
// bed: what the parts of bench/pair have in common: the options, a standby in a process of its own, guests
// with and without one, and the report.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/guest.hpp"

namespace kagemusha::bench {

struct options {
    std::string backend = "opencl", backend_options, primary_gpu, standby_gpu;
    std::string listen; // where standbys do; "": a port with keys, a Unix socket without
    std::string only;   // parts, comma-separated; "": all
    std::string keys;   // HOST/vm/bench/qemu of `kage keys`, for both ends; "": no TLS
    std::string json;   // a file
    std::vector<std::uint64_t> transfer_mib = {256, 1024};
    std::uint32_t submits = 4000; // of each kind
    std::uint32_t seconds = 3;    // that a measured piece of a program takes
    bool standby = false;         // this process is one
};

using clock = std::chrono::steady_clock;
inline double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
}
// Of all samples the one below which `part` of them are; sorts them.
double quantile(std::vector<double>& samples, double part);

// Dispatches this process's devices until `done` or the time is over (false).
bool until(const std::function<bool()>& done, double seconds);

// Figures, printed as they come, and as JSON at the end.
class report {
public:
    void heading(const std::string& text);
    void figure(const std::string& name, double value, const char* unit);
    bool write(const std::string& file) const;

private:
    struct line {
        std::string heading, name, unit;
        double value;
    };
    std::string heading_;
    std::vector<line> lines_;
};

kagemusha_device_config config_of(const options& o);

// A standby in another process, which ends with this object.
class standby_process {
public:
    explicit standby_process(const options& o);
    ~standby_process();
    standby_process(const standby_process&) = delete;
    standby_process& operator=(const standby_process&) = delete;
    const std::string& address() const { return address_; }

private:
    int pid_ = -1, to_ = -1, from_ = -1;
    std::string address_;
};
int run_standby(const options& o); // what that process does

// A guest, and the standby that protects it, if it has one.
struct protected_guest {
    std::unique_ptr<standby_process> standby;
    std::unique_ptr<test::guest> guest;
    std::string address; // as the device was told

    bool protect(); // names the standby and waits
    bool wait_executed(double seconds = 120) const;
};
enum class protection { none, nobody, standby, standby_later };
protected_guest make_guest(const options& o, protection p, std::uint32_t digest_interval_ms = 0);

inline constexpr std::uint64_t guest_bytes = 64u << 20;
inline constexpr std::uint64_t digest_chunk_bytes = 256u << 10;

void measure_submit(const options& o, report& r);
void measure_transfer(const options& o, report& r);
void measure_program(const options& o, report& r); // what a program loses to digests
void measure_writes(const options& o, report& r);

} // namespace kagemusha::bench
