// SPDX-License-Identifier: GPL-2.0-or-later
//
// The suite of `kage bench`: an ordinary OpenCL program, the same file on the host and in guests.
//
//   kagemusha_bench_suite list                             the programs, as JSON
//   kagemusha_bench_suite run NAME REPEATS [SCALE]         does its work so often; one line of JSON at the
//   end kagemusha_bench_suite calibrate NAME SECONDS [SCALE]   how many repeats take at least that long
//   kagemusha_bench_suite device                           what it runs on, as JSON
//   kagemusha_bench_suite check                            each program once; status 1 when a result is wrong
//
// `run` prints @begin and @end around what is measured. Whoever wants to know how long that took looks at his
// own clock when the lines arrive: the clock of a guest stands still while a checkpoint stops the guest.
#include "suite/program.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

using namespace suite;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<program> all() {
    std::vector<program> found;
    for (const auto& some : {linear_programs(), grid_programs(), irregular_programs(), loop_programs()})
        found.insert(found.end(), some.begin(), some.end());
    return found;
}

const program* find(const char* name) {
    static const std::vector<program> known = all();
    for (const program& one : known)
        if (std::strcmp(one.name, name) == 0)
            return &one;
    std::fprintf(stderr, "kagemusha_bench_suite: no program '%s'; `list` names them\n", name);
    return nullptr;
}

void say(const char* line) {
    std::puts(line);
    std::fflush(stdout);
}

int list() {
    const char* separator = "[";
    for (const program& one : all()) {
        std::printf("%s{\"name\": \"%s\", \"kind\": \"%s\", \"what\": \"%s\"}", separator, one.name, one.kind,
                    one.what);
        separator = ", ";
    }
    std::puts("]");
    return 0;
}

int describe() {
    gpu device;
    std::printf("{\"device\": \"%s\", \"platform\": \"%s\", \"driver\": \"%s\"}\n", device.name().c_str(),
                device.platform().c_str(), device.driver().c_str());
    return 0;
}

int run(const program& what, long repeats, std::size_t scale) {
    gpu device;
    const auto work = what.make(device, scale);
    work->once(); // builds what the device builds at a first launch
    say("@begin");
    const double start = now();
    for (long i = 0; i < repeats; ++i)
        work->once();
    const double seconds = now() - start;
    say("@end");
    const std::string wrong = work->check();
    std::printf(
        "{\"program\": \"%s\", \"repeats\": %ld, \"scale\": %zu, \"seconds\": %.6f, \"device\": \"%s\", "
        "\"wrong\": \"%s\"}\n",
        what.name, repeats, scale, seconds, device.name().c_str(), wrong.c_str());
    return wrong.empty() ? 0 : 1;
}

int calibrate(const program& what, double wanted, std::size_t scale) {
    gpu device;
    const auto work = what.make(device, scale);
    work->once();
    long repeats = 1;
    double seconds = 0;
    for (;; repeats *= 2) {
        const double start = now();
        for (long i = 0; i < repeats; ++i)
            work->once();
        seconds = now() - start;
        if (seconds >= wanted / 4 || repeats >= 1L << 30)
            break;
    }
    const double needed = static_cast<double>(repeats) * wanted / seconds;
    std::printf("{\"repeats\": %ld}\n", needed < 1 ? 1 : static_cast<long>(needed + 0.999));
    return 0;
}

int check() {
    gpu device;
    int status = 0;
    for (const program& one : all()) {
        const auto work = one.make(device, 1);
        for (int i = 0; i < 2; ++i) // a second time: the work must begin from the same input
            work->once();
        const std::string wrong = work->check();
        std::printf("%-9s %s\n", one.name, wrong.empty() ? "right" : wrong.c_str());
        status |= wrong.empty() ? 0 : 1;
    }
    return status;
}

int usage() {
    std::fprintf(stderr, "usage: kagemusha_bench_suite list | device | check | run NAME REPEATS [SCALE] | "
                         "calibrate NAME SECONDS [SCALE]\n");
    return 2;
}

} // namespace

int main(int argc, char** argv) try {
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "list")
        return list();
    if (command == "device")
        return describe();
    if (command == "check")
        return check();
    const std::size_t scale = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 1;
    if (argc < 4 || scale < 1 || scale > 256)
        return usage();
    const program* what = find(argv[2]);
    if (!what)
        return 2;
    if (const long repeats = std::strtol(argv[3], nullptr, 10); command == "run" && repeats > 0)
        return run(*what, repeats, scale);
    if (const double seconds = std::strtod(argv[3], nullptr); command == "calibrate" && seconds > 0)
        return calibrate(*what, seconds, scale);
    return usage();
} catch (const std::exception& error) {
    std::printf("{\"error\": \"%s\"}\n", error.what());
    return 1;
}
