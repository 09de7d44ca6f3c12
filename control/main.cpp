// SPDX-License-Identifier: GPL-2.0-or-later
//
// The control tool: options in, one of the commands out. `kage` sets everything up and then hands over to
// this program. Clusters, the portal and jobs in VMs are another one's: kagemusha-daemon.
#include "control/base/assets.hpp"
#include "control/base/gpu_parts.hpp"
#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/whole_file.hpp"
#include "control/base/write_all.hpp"
#include "control/confine/guard.hpp"
#include "control/daemon/client/words.hpp"
#include "control/demo/crash_demo.hpp"
#include "control/demo/demo.hpp"
#include "control/keys/keys.hpp"
#include "control/libvirt/bounded_xml.hpp"
#include "control/libvirt/libvirt_domain.hpp"
#include "control/mig/mig_command.hpp"
#include "control/relay/relay.hpp"
#include "control/run/guest_run.hpp"
#include "control/share/mps.hpp"
#include "control/share/share_status.hpp"
#include "control/status/metrics.hpp"
#include "control/status/status.hpp"
#include "control/supervise/control_socket.hpp"
#include "control/supervise/supervisor.hpp"
#include "control/supervise/takeover_drill.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace {

using namespace kagemusha::control;

std::string variable_or(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? value : otherwise;
}

// Options of every command that starts a guest.
void add_machine_options(CLI::App& command, guest_run_options& options) {
    options.flavour = variable_or("KAGE_KERNEL", default_flavour);
    options.accel = variable_or("KAGE_ACCEL", "auto");
    command.add_option("--gpu", options.gpu,
                       "the host's GPU: a number or a part of its name, as `gpus` lists them");
    command
        .add_option("--backend", options.backend, "opencl, cuda, null, faulty; none: a guest without a GPU")
        ->capture_default_str();
    command.add_option("--driver", options.driver,
                       "cuda: the host's driver library by path, or `ptx`, the device without a GPU");
    command.add_option("--memory", options.memory_mib, "guest memory in MiB")
        ->capture_default_str()
        ->check(CLI::Range(128, 1 << 20));
    command.add_option("--cpus", options.cpus, "guest CPUs")
        ->capture_default_str()
        ->check(CLI::Range(1, 255));
    command
        .add_option("--kernel", options.flavour, "guest kernel: 6.1-cloud, 6.1-amd64, 6.12-cloud, 6.12-amd64")
        ->capture_default_str();
    command.add_option("--accel", options.accel, "auto, kvm or tcg")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "kvm", "tcg"}));
    command
        .add_option("--device-option", options.device_options,
                    "KEY=VALUE: a property of the virtio-vgpu-pci device")
        ->allow_extra_args(false);
    command.add_option("--module-parameters", options.module_parameters,
                       "for the guest's kagemusha_vgpu module");
    command.add_option("--qemu-option", options.qemu_options, "one more word for QEMU's command line")
        ->allow_extra_args(false);
    command.add_option("--name", options.name, "under which `status` shows the VM (default: vm-PID)");
    command.add_flag("--keep", options.keep, "keep the run's directory with its logs, and say where it is");
    command.add_flag("--verbose", options.verbose, "show the guest's console from its first byte on");
}

void add_replication_options(CLI::App& command, guest_run_options& options) {
    command.add_option("--vm-id", options.vm_id,
                       "replication: a name of the protected VM, the same on both hosts");
    command.add_option("--tls", options.tls_dir, "replication: this host's directory of `keys`");
    command.add_flag("--compress", options.compress,
                     "replication: compress what is sent, if both ends want it; for slow links");
}

int list_gpus(const std::string& backend, const std::string& wanted_driver) {
    const auto lister = find_built("kagemusha-gpus");
    if (lister.empty()) {
        fmt::print(stderr, "kage: {}\n", not_there("kagemusha-gpus"));
        return 125;
    }
    const auto driver = find_host_driver(backend, wanted_driver);
    if (!driver)
        return 125;
    const auto options = driver->empty() ? std::string() : "driver=" + *driver;
    const auto said = run_captured({lister, "--backend", backend, "--options", options});
    fmt::print("{}", said.out);
    if (const auto cut = mig_text_of_host(); !cut.empty())
        fmt::print("\n{}", cut);
    if (const auto mps = mps_text_of_host(); !mps.empty())
        fmt::print("\n{}", mps);
    if (const auto shares = shared_text(read_shared_gpus(true)); !shares.empty())
        fmt::print("\n{}", shares);
    return said.status;
}

int print_assets(const guest_run_options& options) {
    const auto found = find_assets(options.flavour, options.backend != "none");
    if (!found)
        return 125;
    fmt::print("{}\n", as_json_text(found->to_json(), 2));
    return 0;
}

int run_keys(keys_request& request, const std::vector<std::string>& hosts, bool renew,
             const std::vector<std::string>& revoked) {
    for (const auto& host : renew || revoked.empty() ? hosts : revoked)
        request.hosts.push_back(host_names(host));
    if (renew || !revoked.empty()) {
        const auto done = renew ? renew_keys(request) : revoke_keys(request);
        if (done.error.empty())
            fmt::print("{}", renew ? renew_advice(request, done) : revoke_advice(request, done));
        else
            fmt::print(stderr, "kage: {}\n", done.error);
        return done.error.empty() ? 0 : 125;
    }
    if (request.hosts.empty()) {
        char name[65] = "";
        if (::gethostname(name, sizeof(name) - 1) != 0 || !*name) {
            fmt::print(stderr, "kage: this machine has no name: give --host NAME\n");
            return 125;
        }
        request.hosts = {{name}};
        if (std::strcmp(name, "localhost") != 0)
            request.hosts[0].push_back("localhost");
        request.hosts[0].insert(request.hosts[0].end(), {"127.0.0.1", "::1"});
    }
    const auto made = make_keys(request);
    if (!made.error.empty()) {
        fmt::print(stderr, "kage: {}\n", made.error);
        return 125;
    }
    fmt::print("{}", keys_advice(request, made));
    return 0;
}

// The job: a script file, or the words after the options as one command.
int run_job(guest_run_options& options, const std::string& job_file, const std::vector<std::string>& words) {
    std::string job;
    if (!job_file.empty()) {
        auto text = read_whole_file(job_file);
        if (!text) {
            fmt::print(stderr, "kage: cannot read {}\n", job_file);
            return 125;
        }
        job = std::move(*text);
    }
    for (const auto& word : words) {
        std::string quoted = "'";
        for (const char c : word)
            quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
        job += quoted + "' ";
    }
    if (job.empty()) {
        fmt::print(stderr, "kage: nothing to run: give --job FILE or a command\n");
        return 125;
    }
    const auto result = run_in_guest(options, job, false,
                                     [](std::string_view text) { return write_all(STDOUT_FILENO, text); });
    return exit_status(result);
}

// A VM that waits for a primary's: its guest does not run, its GPU does what the primary's does.
int run_standby(guest_run_options& options) {
    if (options.backend == "none") {
        fmt::print(stderr, "kage: a standby needs a GPU: another --backend\n");
        return 125;
    }
    fmt::print(stderr,
               "standby of '{}' at {}; start the VM elsewhere with the same options and --replicate-to. "
               "Ctrl-C ends it.\n",
               options.vm_id, options.standby_listen);
    const auto result = run_in_guest(options, "true", false,
                                     [](std::string_view text) { return write_all(STDOUT_FILENO, text); });
    return exit_status(result);
}

// Says something to the supervisor of a running VM.
int report_supervisor(const std::string& vm, nlohmann::json request, bool as_json, int answer_ms = 5000,
                      std::string (*text)(const nlohmann::json&) = nullptr) {
    std::string error;
    for (const auto& running : running_vms(error)) {
        if (running.name != vm)
            continue;
        if (running.control_socket.empty()) {
            error = vm + " was not started from a description, so it has no supervisor";
            break;
        }
        if (const auto answer = ask_supervisor(running.control_socket, request, error, answer_ms)) {
            if (as_json)
                fmt::print("{}\n", answer->dump(2));
            else if (text)
                fmt::print("{}", text(*answer));
            return 0;
        }
        break;
    }
    if (error.empty())
        error = "no VM of this user with the name " + vm + " runs";
    if (as_json)
        fmt::print("{}\n", as_json_text({{"error", error}}, 2));
    fmt::print(stderr, "kage: {}\n", error);
    return 125;
}

// On an NVIDIA GPU if there is one.
guest_run_options cuda_demo(guest_run_options options, crash_demo_options& crash) {
    crash.program = demo_program::training;
    options.backend = "cuda";
    if (options.driver.empty() && ::access("/dev/nvidiactl", F_OK) != 0)
        options.driver = "ptx";
    return options;
}

// With a crash unless told otherwise.
int run_demos(const guest_run_options& options, const crash_demo_options& crash, bool no_crash) {
    if (options.backend == "none") {
        fmt::print(stderr, "kage: the demo needs a GPU: another --backend\n");
        return 125;
    }
    const bool cuda = crash.program == demo_program::training;
    if (options.backend == "cuda" && !cuda) {
        fmt::print(stderr, "kage: the demo's program with CUDA is another one: --cuda\n");
        return 125;
    }
    if (no_crash && cuda) {
        fmt::print(stderr, "kage: --cuda is for the demo in which a host dies: without --no-crash\n");
        return 125;
    }
    if (no_crash)
        return run_demo(options);
    const std::pair<const char*, bool> alone[] = {
        {"--replicate-to", !options.replicate_to.empty()},
        {"--vm-id", !options.vm_id.empty()},
        {"--tls", !options.tls_dir.empty()},
        {"--compress", options.compress},
        {"--name", !options.name.empty()},
        {"--module-parameters", !options.module_parameters.empty()}};
    for (const auto& [option, given] : alone) {
        if (given) {
            fmt::print(stderr, "kage: {} goes only with --no-crash\n", option);
            return 125;
        }
    }
    return run_crash_demo(options, crash);
}

bool is_description(const std::string& word) {
    return word.ends_with(".toml");
}

// A domain of libvirt as a description, on standard output.
int run_import(const std::string& path, const std::vector<std::string>& without) {
    std::ifstream file(path, std::ios::binary);
    std::string text(longest_xml + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (file.bad() || !file.is_open()) {
        fmt::print(stderr, "kage: cannot read {}\n", path);
        return 125;
    }
    text.resize(static_cast<std::size_t>(file.gcount()));
    const auto domain = import_domain(text, without);
    for (const auto& sentence : domain.refused)
        fmt::print(stderr, "kage: {}: {}\n", path, as_log_line(sentence));
    fmt::print("{}", domain.toml);
    return domain.refused.empty() ? 0 : 125;
}

// This process becomes the program that has the command. Returns only if it cannot.
int leave_to_daemon(char** argv) {
    const auto program = program_beside(daemon::program_name);
    ::execv(program.c_str(), argv);
    fmt::print(stderr, "kage: {}\n",
               errno == ENOENT ? not_there(daemon::program_name)
                               : fmt::format("cannot run {}: {}", program, std::strerror(errno)));
    return 125;
}

int run_shell(guest_run_options& options) {
    fmt::print(stderr, "Ctrl-] ends the guest at once.\n");
    const auto result =
        run_in_guest(options, {}, true, [](std::string_view text) { return write_all(STDOUT_FILENO, text); });
    return exit_status(result);
}

} // namespace

int main(int argc, char** argv) {
    guard_if_asked(argc, argv);
    if (argc == 3 && std::strcmp(argv[1], relay_word) == 0)
        relay_main(argv[2]);
    if (argc > 1 && daemon::is_left_to_daemon(argv[1]))
        return leave_to_daemon(argv);
    interrupt_fd(); // from here on signals are ours to read

    CLI::App app{"Kagemusha: virtual machines that compute on the host's GPU"};
    app.set_version_flag("--version", "kagemusha " KAGEMUSHA_VERSION);
    app.require_subcommand(1);
    guest_run_options options;
    std::string job_file;
    std::uint64_t out_max_mib = options.out.max_bytes >> 20;
    std::vector<std::string> words;

    auto* gpus = app.add_subcommand("gpus", "list the GPUs that a guest can get");
    std::string listed_backend = "opencl", listed_driver;
    gpus->add_option("--backend", listed_backend, "opencl or cuda")
        ->capture_default_str()
        ->check(CLI::IsMember({"opencl", "cuda"}));
    gpus->add_option("--driver", listed_driver, "cuda: the driver library by path, or `ptx`");
    auto* mig = gpus->add_subcommand("mig", "NVIDIA's MIG: a GPU cut into instances by its hardware");
    mig_options cut;
    mig->add_option("--gpu", cut.request.gpu,
                    "its number in this list, or its name, GPU-…; not needed for one GPU");
    auto* enable = mig->add_flag("--enable", cut.enable, "turn MIG mode on; some GPUs need a reset then");
    mig->add_flag("--disable", cut.disable, "turn it off")->excludes(enable);
    mig->add_option("--create", cut.request.create, "PROFILE[,PROFILE...]: make instances, as 1g.10gb")
        ->delimiter(',')
        ->allow_extra_args(false);
    mig->add_option("--destroy", cut.request.destroy, "MIG-…[,MIG-…]: destroy instances")
        ->delimiter(',')
        ->allow_extra_args(false);
    mig->add_flag("--destroy-all", cut.request.destroy_all, "destroy all of the GPU's instances");
    mig->add_flag("--dry-run", cut.dry_run, "say what would be done");
    mig->add_flag("--json", cut.json, "the list as JSON");
    mig->add_option("--library", cut.library, "the management library by path (default: the system's)")
        ->envname("KAGEMUSHA_NVML");
    auto* demo = app.add_subcommand(
        "demo",
        "an unmodified program computes on the GPU from inside a guest, and survives the death of its host");
    crash_demo_options crash;
    crash.svg = "kagemusha-demo.svg";
    bool no_crash = false, with_cuda = false;
    demo->add_flag(
        "--cuda", with_cuda,
        "train a network with CUDA; without an NVIDIA GPU on this machine's processor (--driver ptx)");
    demo->add_flag("--no-crash", no_crash, "one guest, no standby, and nothing dies");
    demo->add_option("--standby-gpu", crash.standby_gpu, "another GPU for the standby");
    demo->add_option("--svg", crash.svg, "where the picture of the takeover goes; \"\": none")
        ->capture_default_str();
    auto* run =
        app.add_subcommand("run", "run a command or script in a new guest; ends with its exit status");
    auto* shell = app.add_subcommand("shell", "a shell in a new guest");
    auto* standby =
        app.add_subcommand("standby", "a VM that waits as the standby of one that runs on another host");
    auto* assets = app.add_subcommand("assets", "where the parts of a guest are, as JSON (built if needed)");

    keys_request key_options;
    std::vector<std::string> key_hosts, revoked_hosts;
    bool renew = false;
    auto* keys =
        app.add_subcommand("keys", "make the keys (TLS) with which hosts of a cluster know each other");
    keys->add_option("directory", key_options.directory, "where to; more hosts can be added to it later")
        ->required();
    keys->add_option(
            "--host", key_hosts,
            "NAME[,NAME...]: a host, with all names and addresses that others connect to (default: this "
            "machine)")
        ->allow_extra_args(false);
    keys->add_option("--vm", key_options.vms, "NAME: a VM that these hosts may run; its links want it")
        ->allow_extra_args(false);
    auto* renewed =
        keys->add_flag("--renew", renew,
                       "new keys in the place of those that are there: of all hosts and VMs, or of "
                       "the named ones");
    keys->add_option("--revoke", revoked_hosts,
                     "HOST: its keys (with --vm, those for this VM) are accepted by nobody any more")
        ->allow_extra_args(false)
        ->excludes(renewed);
    keys->add_option("--days", key_options.days, "how long they are valid; the CA itself lasts ten years")
        ->capture_default_str()
        ->check(CLI::Range(1, 36500));

    std::string domain_file;
    std::vector<std::string> without;
    auto* import = app.add_subcommand("import", "print a domain of libvirt as a VM's description");
    import->add_option("domain", domain_file, "XML, as `virsh dumpxml --inactive` prints it")->required();
    import->add_option("--without", without, "ELEMENT[,ELEMENT...]: devices that the guest does without")
        ->delimiter(',')
        ->allow_extra_args(false);

    supervisor_options supervised;
    auto* qemu_command =
        app.add_subcommand("qemu-command", "print the command line of QEMU for a VM's description");
    qemu_command->add_option("description", supervised.description, "VM.toml")->required();
    qemu_command->add_flag("--standby", supervised.standby, "of the standby's QEMU");
    std::string vm_name, vm_standby;
    bool as_json = false;
    auto* protect = app.add_subcommand("protect", "give a running VM a standby, as after a takeover");
    protect->add_option("vm", vm_name, "its name, as `status` shows it")->required();
    protect->add_option("standby", vm_standby,
                        "HOST:PORT or unix:PATH where the new standby's supervisor listens");
    auto* stop = app.add_subcommand("stop", "end a VM that was started from a description, or its standby");
    stop->add_option("vm", vm_name, "its name, as `status` shows it")->required();
    auto* switchover =
        app.add_subcommand("switchover", "move a protected VM to its standby; nothing is lost");
    switchover->add_option("vm", vm_name, "its name, as `status` shows it")->required();
    bool cancel = false;
    switchover->add_flag("--cancel", cancel, "let it run on here, if the standby does not run it yet");
    auto* drill = app.add_subcommand("drill", "kill a protected VM's QEMU on purpose, and say how long the "
                                              "takeover took");
    drill->add_option("vm", vm_name, "its name, as `status` shows it")->required();
    for (auto* command : {protect, stop, switchover, drill})
        command->add_flag("--json", as_json, "the answer as JSON");
    qemu_command->add_flag("--json", supervised.json, "as JSON");

    status_options status_request;
    std::string listen = "127.0.0.1:9464";
    auto* status = app.add_subcommand("status", "the running VMs of this user, and how they are protected");
    status->add_option("vm", status_request.vm, "only this one");
    status->add_flag("--json", status_request.json, "as JSON");
    status->add_flag("--watch", status_request.watch,
                     "again every second, until Ctrl-C; with --json a line each");
    auto* metrics = app.add_subcommand("metrics", "serve the same for Prometheus");
    metrics->add_option("--listen", listen, "ADDRESS:PORT")->capture_default_str();
    for (auto* command : {status, metrics})
        command
            ->add_option("--qmp", status_request.qmp_sockets,
                         "the QMP socket of a VM that was not started by this tool")
            ->allow_extra_args(false);

    top_options top_request;
    auto* top = app.add_subcommand("top", "who uses the GPUs that VMs of this user share, live");
    top->add_flag("--json", top_request.json, "as JSON, a line for each reading");
    top->add_flag("--programs", top_request.programs,
                  "with a line for each of their programs, by its worker");
    top->add_flag("--once", top_request.once, "one reading, over a second");

    for (auto* command : {demo, run, shell, standby}) {
        add_machine_options(*command, options);
        add_replication_options(*command, options);
    }
    for (auto* command : {demo, run, shell})
        command->add_option("--replicate-to", options.replicate_to,
                            "HOST:PORT or unix:PATH where `standby` listens: it gets all of the GPU's state");
    standby->add_option(
        "--listen", options.standby_listen,
        "ADDRESS:PORT (of this host) or unix:PATH, for the VM's host to connect to; with VM.toml: "
        "another address than the description's");
    standby->add_option("description", supervised.description, "VM.toml: the standby of this VM");
    run->add_option("--standby", supervised.address,
                    "with VM.toml: another address of its standby than the description's");
    run->add_flag(
        "--force-new", supervised.anew,
        "with VM.toml: start it although a standby may have what ran last (it is gone for ever then)");
    standby->add_flag(
        "--discard-replica", supervised.overwrite,
        "with VM.toml: overwrite this host's writable disks although they may be newer than the primary's");
    for (auto* command : {run, standby}) {
        command->add_flag("--json", supervised.json, "with VM.toml: the log's lines as JSON");
        command
            ->add_option("--disk", supervised.images,
                         "with VM.toml: another image than the description's, for its first (second, …) "
                         "writable disk")
            ->allow_extra_args(false);
    }
    standby->add_option("--qmp", options.qmp_socket, "a QMP monitor on this Unix socket");
    for (auto* command : {demo, run}) {
        command->add_option("--timeout", options.timeout_s, "seconds until the guest is killed")
            ->capture_default_str()
            ->check(CLI::Range(1, 1'000'000));
        command->add_option("--report", options.report, "write a report of the run, as JSON, to this file");
    }
    run->add_option("--job", job_file, "a bash script to run in the guest, as root");
    for (auto* command : {run, shell}) {
        command
            ->add_option("--file", options.files,
                         "SOURCE[:NAME]: file or directory for the guest, as /payload/NAME")
            ->allow_extra_args(false);
        command->add_option("--qmp", options.qmp_socket, "a QMP monitor on this Unix socket");
        command
            ->add_option("--port", options.ports,
                         "NAME=SOCKET: a virtio-serial port on a listening Unix socket")
            ->allow_extra_args(false);
    }
    run->add_option("--out", options.out_dir, "what the job leaves in /out comes into this directory");
    run->add_option("--out-max", out_max_mib, "MiB: the most that all files of --out may have together")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1u << 20));
    run->add_flag("--quiet", options.quiet, "nothing but the job's output and errors");
    run->add_option("command", words,
                    "a command and its arguments (after --), or VM.toml: the VM that it describes");
    for (const auto& [word, what] : daemon::for_people)
        app.add_subcommand(word, what); // named by --help; who calls them is not here any more
    assets->add_option("--kernel", options.flavour, "guest kernel");
    assets->add_option("--backend", options.backend, "none: without the parts for a GPU");

    CLI11_PARSE(app, argc, argv);
    if (import->parsed())
        return run_import(domain_file, without);
    if (mig->parsed())
        return run_mig(std::move(cut));
    if (gpus->parsed())
        return list_gpus(listed_backend, listed_driver);
    if (qemu_command->parsed())
        return print_qemu_command(supervised);
    if (stop->parsed())
        return report_supervisor(vm_name, {{"command", "stop"}}, as_json);
    constexpr int drill_ms = 60000; // the standby is waited for at most 10 s, the arbiter may need some
    if (drill->parsed())
        return report_supervisor(vm_name, {{"command", "drill"}}, as_json, drill_ms, drill_text);
    if (switchover->parsed())
        return report_supervisor(vm_name, {{"command", cancel ? "cancel-switchover" : "switchover"}},
                                 as_json);
    if (protect->parsed())
        return report_supervisor(vm_name, {{"command", "protect"}, {"standby", vm_standby}}, as_json);
    supervised.name = options.name;
    if (run->parsed() && words.size() == 1 && is_description(words[0]) && job_file.empty()) {
        supervised.description = words[0];
        return run_supervisor(supervised);
    }
    if (standby->parsed() && !supervised.description.empty()) {
        supervised.standby = true;
        supervised.address = options.standby_listen;
        return run_supervisor(supervised);
    }
    if (standby->parsed() && (options.standby_listen.empty() || options.vm_id.empty())) {
        fmt::print(stderr, "kage: standby wants VM.toml, or --listen and --vm-id\n");
        return 125;
    }
    if (assets->parsed())
        return print_assets(options);
    if (status->parsed())
        return run_status(status_request);
    if (top->parsed())
        return run_top(top_request);
    if (metrics->parsed())
        return run_metrics(listen, status_request);
    if (keys->parsed())
        return run_keys(key_options, key_hosts, renew, revoked_hosts);
    if (standby->parsed()) {
        options.timeout_s = 1'000'000'000; // as long as it takes
        return run_standby(options);
    }
    if (shell->parsed())
        return run_shell(options);
    if (demo->parsed())
        return run_demos(with_cuda ? cuda_demo(options, crash) : options, crash, no_crash);
    options.out.max_bytes = out_max_mib << 20;
    return run_job(options, job_file, words);
}
