// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_cuda_checkpoint: what NVIDIA's own checkpoint of a CUDA process takes (the driver's
// cuCheckpointProcess…, which the tool cuda-checkpoint calls), against the amount of GPU memory. A child
// process has so much memory with a known content; this one locks it, checkpoints it, restores it and unlocks
// it; then the child compares every byte. `--onto`: restored onto another GPU of this machine, which changes
// places with the first one.
//
//   kagemusha_cuda_checkpoint [--mib 64,256,1024,4096,8192] [--rounds 3] [--device 0] [--onto 1]
//
// A line for each amount: medians of the rounds, the shortest and the longest `stopped`. One line with the
// driver's own words where it refuses, and where there is no such driver; that is no failure of this program.
// A wrong content is.
//
//   stopped   from the begin of the lock to the end of the unlock: so long the process's calls of the driver
//   wait host MiB  by how much the process's memory on the host has grown when it is checkpointed: there the
//   content is
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "peers/cuda_driver.hpp"

namespace kagemusha::bench {

namespace {

constexpr std::size_t mib = std::size_t{1} << 20, piece_bytes = 16 * mib;

// ---- the child: memory with a content that differs from word to word and from piece to piece ----

std::vector<std::uint64_t> content_of(std::uint64_t piece) {
    std::vector<std::uint64_t> words(piece_bytes / sizeof(std::uint64_t));
    std::uint64_t state = piece + 1;
    for (std::uint64_t& word : words) { // splitmix64
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        word = z ^ (z >> 31);
    }
    return words;
}

// Says a line for each thing that it is asked (one byte on standard input).
int hold(std::size_t amount_mib, int ordinal) {
    cuda::driver d;
    cuda::device gpu = 0;
    cuda::context context = nullptr;
    std::string wrong = d.load();
    const auto ok = [&](const char* what, cuda::result r) {
        if (wrong.empty())
            wrong = d.wrong(what, r);
        return wrong.empty();
    };
    std::vector<cuda::memory> pieces;
    if (wrong.empty() && ok("cuInit", d.init(0)) && ok("cuDeviceGet", d.device_get(&gpu, ordinal)) &&
        ok("cuDevicePrimaryCtxRetain", d.context_retain(&context, gpu)) &&
        ok("cuCtxSetCurrent", d.context_set(context))) {
        for (std::size_t i = 0; i < amount_mib * mib / piece_bytes && wrong.empty(); ++i) {
            cuda::memory piece = 0;
            if (ok("cuMemAlloc", d.allocate(&piece, piece_bytes))) {
                pieces.push_back(piece);
                ok("cuMemcpyHtoD", d.to_device(piece, content_of(i).data(), piece_bytes));
            }
        }
    }
    std::printf("%s\n", wrong.empty() ? "ready" : wrong.c_str());
    std::fflush(stdout);
    for (char asked = 0; wrong.empty() && read(STDIN_FILENO, &asked, 1) == 1;) {
        std::size_t different = 0;
        std::vector<std::uint64_t> found(piece_bytes / sizeof(std::uint64_t));
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (!ok("cuMemcpyDtoH", d.to_host(found.data(), pieces[i], piece_bytes)))
                break;
            different += found != content_of(i);
        }
        std::printf("%s\n", !wrong.empty()   ? wrong.c_str()
                            : different == 0 ? "right"
                                             : (std::to_string(different) + " pieces WRONG").c_str());
        std::fflush(stdout);
    }
    return wrong.empty() ? 0 : 1;
}

class child {
public:
    child(std::size_t amount_mib, int ordinal) {
        int in[2], out[2];
        if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
            std::perror("pipe");
            std::exit(1);
        }
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            execl("/proc/self/exe", "kagemusha_cuda_checkpoint", "--hold", std::to_string(amount_mib).c_str(),
                  std::to_string(ordinal).c_str(), nullptr);
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = in[1];
        from_ = out[0];
        if (pid_ < 0) {
            std::perror("fork");
            std::exit(1);
        }
    }
    child(const child&) = delete;
    child& operator=(const child&) = delete;
    ~child() {
        close(to_);
        close(from_);
        // One that stays locked or checkpointed does not notice that its input has ended.
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    int pid() const { return pid_; }
    std::string line() const {
        std::string out;
        for (char c; read(from_, &c, 1) == 1 && c != '\n';)
            out += c;
        return out.empty() ? "the child has ended" : out;
    }
    std::string compare() const { return write(to_, "?", 1) == 1 ? line() : "the child has ended"; }
    double host_mib() const {
        std::ifstream status("/proc/" + std::to_string(pid_) + "/statm");
        double size = 0, resident = 0;
        status >> size >> resident;
        return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / static_cast<double>(mib);
    }

private:
    pid_t pid_ = -1;
    int to_ = -1, from_ = -1;
};

// ---- one checkpoint of a child ----

using clock = std::chrono::steady_clock;

struct sample {
    double lock_ms = 0, checkpoint_ms = 0, restore_ms = 0, unlock_ms = 0, stopped_ms = 0, host_mib = 0;
    std::string wrong; // "": the content is right
};

double ms_since(clock::time_point start) {
    return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

sample measure(const cuda::driver& d, std::size_t amount_mib, int ordinal,
               std::vector<cuda::gpu_pair> pairs) {
    sample out;
    child process(amount_mib, ordinal);
    if (const std::string said = process.line(); said != "ready") {
        out.wrong = said;
        return out;
    }
    const double before = process.host_mib();
    const auto begin = clock::now();
    const auto step = [&](const char* what, auto&& call, cuda::process_states then, double& ms) {
        if (!out.wrong.empty())
            return;
        const auto start = clock::now();
        const cuda::result r = call();
        ms = ms_since(start);
        int state = -1;
        out.wrong = d.wrong(what, r);
        if (out.wrong.empty())
            out.wrong = d.wrong("cuCheckpointProcessGetState", d.process_state(process.pid(), &state));
        if (out.wrong.empty() && state != then)
            out.wrong = std::string("after ") + what + " the process is in state " + std::to_string(state);
    };
    cuda::lock_arguments lock = {};
    lock.timeout_ms = 10000;
    cuda::checkpoint_arguments checkpoint = {};
    cuda::restore_arguments restore = {};
    restore.gpu_pairs = pairs.empty() ? nullptr : pairs.data();
    restore.gpu_pairs_count = static_cast<unsigned int>(pairs.size());
    cuda::unlock_arguments unlock = {};
    const int pid = process.pid();
    step("cuCheckpointProcessLock", [&] { return d.process_lock(pid, &lock); }, cuda::locked, out.lock_ms);
    step(
        "cuCheckpointProcessCheckpoint", [&] { return d.process_checkpoint(pid, &checkpoint); },
        cuda::checkpointed, out.checkpoint_ms);
    out.host_mib = process.host_mib() - before;
    step(
        "cuCheckpointProcessRestore", [&] { return d.process_restore(pid, &restore); }, cuda::locked,
        out.restore_ms);
    step(
        "cuCheckpointProcessUnlock", [&] { return d.process_unlock(pid, &unlock); }, cuda::running,
        out.unlock_ms);
    out.stopped_ms = ms_since(begin);
    if (out.wrong.empty()) {
        const std::string said = process.compare();
        out.wrong = said == "right" ? "" : said;
    }
    return out;
}

double median(const std::vector<sample>& samples, double sample::* of) {
    std::vector<double> values;
    for (const sample& one : samples)
        values.push_back(one.*of);
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void row(std::size_t amount_mib, const std::vector<sample>& samples) {
    for (const sample& one : samples) {
        if (!one.wrong.empty()) {
            std::printf("| %zu | %s |\n", amount_mib, one.wrong.c_str());
            std::fflush(stdout);
            return;
        }
    }
    const auto less = [](const sample& a, const sample& b) { return a.stopped_ms < b.stopped_ms; };
    const auto [shortest, longest] = std::minmax_element(samples.begin(), samples.end(), less);
    std::printf("| %zu | %.1f | %.1f | %.1f | %.1f | %.1f (%.1f-%.1f) | %.0f | right |\n", amount_mib,
                median(samples, &sample::lock_ms), median(samples, &sample::checkpoint_ms),
                median(samples, &sample::restore_ms), median(samples, &sample::unlock_ms),
                median(samples, &sample::stopped_ms), shortest->stopped_ms, longest->stopped_ms,
                median(samples, &sample::host_mib));
    std::fflush(stdout);
}

struct options {
    std::vector<std::size_t> amounts_mib = {64, 256, 1024, 4096, 8192};
    int rounds = 3, ordinal = 0, onto = -1;
};

int measure_all(const options& o) {
    cuda::driver d;
    std::string wrong = d.load();
    cuda::device gpu = 0;
    char name[128] = "";
    int version = 0;
    const auto ok = [&](const char* what, cuda::result r) {
        wrong = d.wrong(what, r);
        return wrong.empty();
    };
    std::vector<cuda::gpu_pair> pairs;
    const bool usable = wrong.empty() && ok("cuInit", d.init(0)) &&
                        ok("cuDriverGetVersion", d.version(&version)) &&
                        ok("cuDeviceGet", d.device_get(&gpu, o.ordinal)) &&
                        ok("cuDeviceGetName", d.device_name(name, sizeof name, gpu));
    if (usable && o.onto >= 0) {
        cuda::device other = 0;
        cuda::uuid one = {}, two = {};
        if (ok("cuDeviceGet", d.device_get(&other, o.onto)) &&
            ok("cuDeviceGetUuid", d.device_uuid(&one, gpu)) &&
            ok("cuDeviceGetUuid", d.device_uuid(&two, other))) {
            pairs = {{one, two}, {two, one}};
        }
    }
    if (!wrong.empty()) {
        std::printf("not measured: %s\n", wrong.c_str());
        return 0;
    }
    std::printf("%s, the driver's CUDA %d.%d%s\n", name, version / 1000, version % 1000 / 10,
                pairs.empty() ? "" : ", restored onto another GPU");
    std::printf("| MiB on the GPU | lock, ms | checkpoint, ms | restore, ms | unlock, ms | stopped, ms | "
                "host MiB | content |\n"
                "|---|---|---|---|---|---|---|---|\n");
    bool all_right = true;
    for (const std::size_t amount : o.amounts_mib) {
        std::vector<sample> samples;
        for (int i = 0; i < o.rounds; ++i) {
            samples.push_back(measure(d, amount, o.ordinal, pairs));
            all_right = all_right && samples.back().wrong.find("WRONG") == std::string::npos;
        }
        row(amount, samples);
    }
    return all_right ? 0 : 1;
}

[[noreturn]] void usage(const char* what) {
    std::fprintf(stderr, "cuda_checkpoint: %s (see bench/peers/cuda_checkpoint.cpp)\n", what);
    std::exit(2);
}

int number(const char* text) {
    int value = 0;
    const char* const end = text + std::strlen(text);
    if (const auto [rest, error] = std::from_chars(text, end, value); error != std::errc{} || rest != end)
        usage("a number is wanted");
    return value;
}

std::vector<std::size_t> numbers(const char* text) {
    std::vector<std::size_t> out;
    for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
        out.push_back(std::strtoull(text, &end, 10));
        if (end == text || out.back() < piece_bytes / mib || out.back() > (std::size_t{1} << 20))
            usage("an amount is 16 MiB to 1 TiB, in MiB");
    }
    return out;
}

} // namespace

} // namespace kagemusha::bench

int main(int argc, char** argv) {
    using namespace kagemusha::bench;
    if (argc == 4 && std::string_view(argv[1]) == "--hold")
        return hold(std::strtoull(argv[2], nullptr, 10), number(argv[3]));
    options o;
    for (int i = 1; i < argc; i += 2) {
        const std::string_view name = argv[i];
        if (i + 1 == argc)
            usage("an option without its value");
        else if (name == "--mib")
            o.amounts_mib = numbers(argv[i + 1]);
        else if (name == "--rounds")
            o.rounds = std::max(1, number(argv[i + 1]));
        else if (name == "--device")
            o.ordinal = number(argv[i + 1]);
        else if (name == "--onto")
            o.onto = number(argv[i + 1]);
        else
            usage("an unknown option");
    }
    return measure_all(o);
}
