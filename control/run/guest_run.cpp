// SPDX-License-Identifier: GPL-2.0-or-later
//
// See session.hpp.
#include "control/run/guest_run.hpp"

#include "control/base/assets.hpp"
#include "control/base/gpu_parts.hpp"
#include "control/base/host_clock.hpp"
#include "control/base/json_text.hpp"
#include "control/base/log_file.hpp"
#include "control/base/process.hpp"
#include "control/base/whole_file.hpp"
#include "control/qemu/kvm_probe.hpp"
#include "control/vm/vm_registry.hpp"
#include "net/identity.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr char out_port[] = "org.kagemusha.out";
constexpr char out_pipe[] = "/out"; // in the run's directory

// A directory of this run alone, removed with everything in it unless it is to be kept.
class run_directory {
public:
    explicit run_directory(bool keep) : keep_(keep) {
        std::error_code error;
        auto name = (fs::temp_directory_path(error) / "kagemusha-XXXXXX").string();
        if (!error && ::mkdtemp(name.data()))
            path_ = name;
    }
    ~run_directory() {
        std::error_code error;
        if (!path_.empty() && !keep_)
            fs::remove_all(path_, error);
    }
    run_directory(const run_directory&) = delete;
    run_directory& operator=(const run_directory&) = delete;
    const std::string& path() const { return path_; }
    void keep() { keep_ = true; }

private:
    std::string path_;
    bool keep_;
};

// The user's job inside ours: what it leaves in /out goes to the host as a tar archive on a serial port.
std::string wrapped_job(bool with_out) {
    std::string text = "bash /payload/kagemusha-job.sh </dev/null\nstatus=$?\n";
    if (with_out)
        text = fmt::format("mkdir -p /out\n{}"
                           "for port in /sys/class/virtio-ports/*; do\n"
                           "    if [ \"$(cat \"$port/name\")\" = {} ]; then\n"
                           "        tar -C /out -cf \"/dev/$(basename \"$port\")\" . || status=125\n"
                           "    fi\n"
                           "done\n",
                           text, out_port);
    return text + "exit $status\n";
}

// "NAME=REST"
std::optional<std::pair<std::string, std::string>> key_value(const std::string& text, const char* option) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
        fmt::print(stderr, "kage: {} wants NAME=VALUE, not '{}'\n", option, text);
        return std::nullopt;
    }
    return std::pair{text.substr(0, equals), text.substr(equals + 1)};
}

bool make_payload(const guest_run_options& options, const assets& parts, const std::string& directory,
                  const std::string& job, bool interactive) {
    std::vector<std::string> command{source_root() + "/scripts/make-payload",
                                     "--out",
                                     directory + "/payload",
                                     "--kernel",
                                     parts.flavour,
                                     "--initramfs",
                                     parts.initramfs};
    if (interactive) {
        winsize size{};
        if (::ioctl(STDIN_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
            size = {25, 80, 0, 0};
        command.insert(command.end(), {"--interactive", fmt::format("{}x{}", size.ws_col, size.ws_row)});
    } else {
        if (!write_whole_file(directory + "/job.sh", wrapped_job(!options.out_dir.empty())).empty() ||
            !write_whole_file(directory + "/user-job.sh", job).empty()) {
            fmt::print(stderr, "kage: cannot write into {}\n", directory);
            return false;
        }
        command.insert(command.end(), {"--job", directory + "/job.sh", "--file",
                                       directory + "/user-job.sh:kagemusha-job.sh"});
    }
    for (const auto& file : options.files)
        command.insert(command.end(), {"--file", file});
    if (options.backend != "none") {
        const auto drivers = guest_driver_words(parts, options.backend);
        command.insert(command.end(), drivers.begin(), drivers.end());
        if (!options.module_parameters.empty())
            command.insert(command.end(), {"--module-parameters", options.module_parameters});
    }
    const auto made = run_captured(command);
    if (made.status != 0)
        fmt::print(stderr, "kage: scripts/make-payload failed with status {}\n", made.status);
    return made.status == 0;
}

std::optional<vm_config> configure(const guest_run_options& options, const assets& parts,
                                   const std::string& directory, const std::string& driver) {
    vm_config config;
    config.qemu = parts.qemu;
    config.firmware_dirs = firmware_dirs(parts.qemu);
    config.kernel = parts.kernel;
    config.initramfs = parts.initramfs;
    config.root_image = parts.root_image;
    config.payload = directory + "/payload";
    config.memory_mib = options.memory_mib;
    config.cpus = options.cpus;
    config.extra = options.qemu_options;
    if (!options.qmp_socket.empty())
        config.qmp_socket = options.qmp_socket;
    if (!options.out_dir.empty())
        config.ports.push_back({out_port, serial_port::end::file, directory + out_pipe});
    for (const auto& port : options.ports) {
        const auto parsed = key_value(port, "--port");
        if (!parsed)
            return std::nullopt;
        config.ports.push_back({parsed->first, serial_port::end::socket, parsed->second});
    }
    if (options.backend != "none") {
        config.gpu = gpu_config{options.backend, options.gpu, {}};
        for (const auto& option : options.device_options) {
            const auto parsed = key_value(option, "--device-option");
            if (!parsed)
                return std::nullopt;
            config.gpu->properties.push_back(*parsed);
        }
        if (!add_host_driver(config.gpu->properties, driver)) {
            fmt::print(stderr, "kage: --driver and --device-option options=… say the same: give one\n");
            return std::nullopt;
        }
        const auto tls_dir = options.tls_dir.empty()
                                 ? std::string()
                                 : net::keys_directory(options.tls_dir, options.vm_id, net::link_part::qemu);
        const std::pair<const char*, const std::string&> replication[] = {
            {"vm-id", options.vm_id},
            {"replicate-to", options.replicate_to},
            {"standby-listen", options.standby_listen},
            {"tls-dir", tls_dir}};
        for (const auto& [property, value] : replication)
            if (!value.empty())
                config.gpu->properties.emplace_back(property, value);
        if (options.compress)
            config.gpu->properties.emplace_back("compression", "on");
    }
    if (!options.standby_listen.empty())
        config.extra.insert(config.extra.end(), {"-incoming", "defer"});
    return config;
}

// Unpacks what the guest writes into its port, through a pipe with a name, which QEMU opens. A guest that
// writes more than it may does not wait for us: the rest is dropped.
class out_receiver {
public:
    out_receiver(const std::string& directory, const out_limits& limits) : archive_(directory, limits) {}
    ~out_receiver() { finish(); }
    out_receiver(const out_receiver&) = delete;
    out_receiver& operator=(const out_receiver&) = delete;

    bool start(const std::string& pipe) {
        if (::mkfifo(pipe.c_str(), 0600) != 0)
            return false;
        const unique_fd first(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
        ours_ = unique_fd(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
        unique_fd from(::open(pipe.c_str(), O_RDONLY | O_CLOEXEC));
        if (!first || !ours_ || !from)
            return false;
        reader_ = std::thread([this, from = std::move(from)] { read_all(from.get()); });
        return true;
    }

    // When QEMU has ended. As out_archive::finish().
    std::string finish() {
        ours_.reset();
        if (reader_.joinable())
            reader_.join();
        return archive_.finish();
    }

private:
    void read_all(int from) {
        char bytes[65536];
        for (;;) {
            const auto got = ::read(from, bytes, sizeof bytes);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return;
            archive_.feed({bytes, static_cast<std::size_t>(got)});
        }
    }

    out_archive archive_; // the thread's until it has ended
    unique_fd ours_;      // as long as it is open the pipe has no end
    std::thread reader_;
};

const char* word(machine_result::end how) {
    switch (how) {
    case machine_result::end::job_ended:
        return "job-ended";
    case machine_result::end::probe_answered:
        return "probe-answered";
    case machine_result::end::timed_out:
        return "timed-out";
    case machine_result::end::interrupted:
        return "interrupted";
    case machine_result::end::failed:
        return "failed";
    }
    return "";
}

void write_report(const std::string& path, const guest_run_result& result) {
    const auto& machine = result.machine;
    const nlohmann::json report{{"end", word(machine.how)},
                                {"job_status", machine.job_status},
                                {"problem", machine.problem},
                                {"cpu", result.cpu},
                                {"kernel", result.kernel_release},
                                {"gpu", machine.gpu_name},
                                {"boot_seconds", machine.boot_seconds},
                                {"job_seconds", machine.job_seconds},
                                {"stats_before", machine.stats_before},
                                {"stats_after", machine.stats_after}};
    if (!write_whole_file(path, as_json_text(report, 2) + "\n").empty())
        fmt::print(stderr, "kage: cannot write {}\n", path);
}

void show_end_of(const std::string& path, const char* title, std::size_t most_lines) {
    const auto lines = last_lines(path, most_lines);
    if (lines.empty())
        return;
    fmt::print(stderr, "{}:\n", title);
    for (const auto& line : lines)
        fmt::print(stderr, "    | {}\n", line);
}

} // namespace

guest_run_result run_in_guest(const guest_run_options& options, const std::string& job, bool interactive,
                              const std::function<bool(std::string_view)>& show) {
    guest_run_result result;
    const bool with_gpu = options.backend != "none";
    const auto parts = find_assets(options.flavour.empty() ? default_flavour : options.flavour, with_gpu);
    if (!parts)
        return result;
    run_directory directory(options.keep);
    if (directory.path().empty()) {
        fmt::print(stderr, "kage: no temporary directory: {}\n", std::strerror(errno));
        return result;
    }
    const auto driver = find_host_driver(options.backend, options.driver);
    auto config = driver ? configure(options, *parts, directory.path(), *driver) : std::nullopt;
    if (!config)
        return result;
    // Without a place for it the VM runs all the same, and nobody sees it; unless it was to have a name.
    std::string problem;
    const auto registered =
        vm_registration::make(options.name.empty() ? fmt::format("vm-{}", ::getpid()) : options.name, problem,
                              false, gpu_named_by(options.backend, options.gpu));
    if (registered) {
        config->status_socket = registered->qmp_socket();
    } else {
        fmt::print(stderr, "kage: {}\n", problem);
        if (!options.name.empty())
            return result;
    }
    const auto cpu = choose_accelerator(options.accel, *config, directory.path());
    config->accel = cpu.accel;
    if (config->accel == accelerator::tcg)
        config->tsc_khz = host_tsc_khz();
    result.cpu = cpu.sentence;
    result.kernel_release = kernel_release(parts->kernel);
    if (!options.quiet)
        fmt::print(stderr, "guest: Linux {}, {} CPUs, {} MiB, {}\n", result.kernel_release, options.cpus,
                   options.memory_mib, result.cpu);
    if (!make_payload(options, *parts, directory.path(), job, interactive))
        return result;

    machine_run run;
    run.config = *config;
    run.directory = directory.path();
    run.time_limit = std::chrono::seconds(options.timeout_s);
    run.verbose = options.verbose || interactive;
    run.interactive = interactive;
    run.show = show;
    if (with_gpu)
        run.environment = gpu_environment(*parts, *driver);
    std::optional<out_receiver> out;
    if (!options.out_dir.empty() &&
        !out.emplace(options.out_dir, options.out).start(directory.path() + out_pipe)) {
        fmt::print(stderr, "kage: no pipe for the guest's files: {}\n", std::strerror(errno));
        return result;
    }
    result.machine = run_machine(run);
    result.prepared = true;
    auto& machine = result.machine;
    const auto lost = out && machine.how == machine_result::end::job_ended ? out->finish() : std::string();
    if (!lost.empty()) {
        fmt::print(stderr, "kage: not all of the guest's files came into {}: {}\n", options.out_dir, lost);
        if (machine.job_status == 0) {
            machine.how = machine_result::end::failed;
            machine.problem = "the guest's files were lost";
        }
    }
    if (!options.report.empty())
        write_report(options.report, result);
    show_end_of(directory.path() + "/qemu.log", "QEMU said", 30);
    if (machine.how == machine_result::end::failed || machine.how == machine_result::end::timed_out)
        show_end_of(directory.path() + "/console.log", "end of the guest's console", 30);
    if (options.keep)
        fmt::print(stderr, "logs: {}\n", directory.path());
    return result;
}

int exit_status(const guest_run_result& result) {
    if (!result.prepared)
        return interrupted_by() ? 128 + interrupted_by() : 125;
    const auto& machine = result.machine;
    if (!machine.problem.empty())
        fmt::print(stderr, "kage: {}\n", machine.problem);
    switch (machine.how) {
    case machine_result::end::job_ended:
        return machine.job_status;
    case machine_result::end::probe_answered:
        return 0;
    case machine_result::end::timed_out:
        return 124;
    case machine_result::end::interrupted:
        return interrupted_by() ? 128 + interrupted_by() : 130;
    case machine_result::end::failed:
        return 125;
    }
    return 125;
}

} // namespace kagemusha::control
