// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_pair_bench: what a standby costs the primary. Each figure is a difference or a ratio of things
// that were measured in turn in one run, since machines differ from one hour to the next. The standby is a
// process of its own; both have workers as in a VM.
//
//   submit      what kagemusha_device_submit() takes for requests of 1 and of 64 launches: without
//               replication, configured but with nobody there, and with a standby
//   transfer    a standby is attached to a guest that keeps launching kernels; then digests of everything
//   program     the runtime of a program without a standby, with one, and with digests every second
//   writes      big writes with a standby and without, and what plain Asio sends
//
//   --primary-gpu SELECTOR  --standby-gpu SELECTOR (as `kage gpus` lists them)  --backend opencl|null
//   --options KEY=VALUE,… (the backend's, replicator/gpu/README.md)
//   --transfer-mib 256,1024,…  --only PART,…  --submits N  --seconds N  --listen ADDRESS  --json FILE
//   --tls (with keys of its own)  --keys DIRECTORY (with these)
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "bed.hpp"
#include "control/keys/keys.hpp"
#include "net/identity.hpp"

namespace kagemusha::bench {
namespace {

std::vector<std::uint64_t> numbers(const char* text) {
    std::vector<std::uint64_t> out;
    for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
        out.push_back(std::strtoull(text, &end, 10));
        if (end == text) {
            std::fprintf(stderr, "pair_bench: not a number: %s\n", text);
            std::exit(2);
        }
    }
    return out;
}

// Keys of a host that is both ends, as long as this lives.
struct own_keys {
    std::string directory;
    ~own_keys() {
        std::error_code ignored;
        if (!directory.empty())
            std::filesystem::remove_all(directory, ignored);
    }
    std::string make() {
        directory = (std::filesystem::temp_directory_path() / "kagemusha-bench-XXXXXX").string();
        control::keys_request request;
        request.directory = mkdtemp(directory.data()) ? directory + "/keys" : "";
        request.hosts = {{"localhost"}};
        request.vms = {"bench"};
        const auto made = control::make_keys(request);
        if (!made.error.empty()) {
            std::fprintf(stderr, "pair_bench: %s\n", made.error.c_str());
            std::exit(1);
        }
        return net::keys_directory(made.host_directories[0], "bench", net::link_part::qemu);
    }
};

options parse(int argc, char** argv, bool& tls) {
    options o;
    for (int i = 1; i < argc; ++i) {
        const std::string_view name = argv[i];
        if (name == "--standby" || name == "--tls") {
            (name == "--tls" ? tls : o.standby) = true;
            continue;
        }
        const char* value = i + 1 < argc ? argv[++i] : nullptr;
        if (value && name == "--backend") {
            o.backend = value;
        } else if (value && name == "--options") {
            o.backend_options = value;
        } else if (value && name == "--primary-gpu") {
            o.primary_gpu = value;
        } else if (value && name == "--standby-gpu") {
            o.standby_gpu = value;
        } else if (value && name == "--listen") {
            o.listen = value;
        } else if (value && name == "--keys") {
            o.keys = value;
        } else if (value && name == "--only") {
            o.only = value;
        } else if (value && name == "--json") {
            o.json = value;
        } else if (value && name == "--transfer-mib") {
            o.transfer_mib = numbers(value);
        } else if (value && name == "--submits") {
            o.submits = static_cast<std::uint32_t>(numbers(value).at(0));
        } else if (value && name == "--seconds") {
            o.seconds = static_cast<std::uint32_t>(numbers(value).at(0));
        } else {
            std::fprintf(stderr, "pair_bench: unknown option or no value: %s (see bench/pair/main.cpp)\n",
                         argv[value ? i - 1 : i]);
            std::exit(2);
        }
    }
    return o;
}

void machine(report& r, const char* when) {
    double load[3] = {};
    getloadavg(load, 3);
    r.heading(std::string("machine, ") + when);
    r.figure("processors", static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)), "");
    r.figure("load of the last minute", load[0], "");
}

} // namespace
} // namespace kagemusha::bench

int main(int argc, char** argv) {
    using namespace kagemusha::bench;
    bool tls = false;
    options o = parse(argc, argv, tls);
    if (o.standby)
        return run_standby(o);
    own_keys keys;
    if (tls)
        o.keys = keys.make();
    const struct {
        const char* name;
        void (*run)(const options&, report&);
    } parts[] = {{"submit", measure_submit},
                 {"transfer", measure_transfer},
                 {"program", measure_program},
                 {"writes", measure_writes}};
    report r;
    machine(r, o.keys.empty() ? "before; the link without TLS" : "before; the link with TLS");
    for (const auto& part : parts)
        if (o.only.empty() || ("," + o.only + ",").find("," + std::string(part.name) + ",") != o.only.npos)
            part.run(o, r);
    machine(r, "after");
    if (!o.json.empty() && !r.write(o.json)) {
        std::fprintf(stderr, "pair_bench: can't write %s\n", o.json.c_str());
        return 1;
    }
    return 0;
}
