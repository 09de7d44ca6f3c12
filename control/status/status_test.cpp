// SPDX-License-Identifier: GPL-2.0-or-later
//
// From QEMU's answers to what a person and Prometheus see. QEMU is a thread here that speaks QMP over a real
// socket; everything else is what the tool uses.
#include "control/qemu/qmp_client.hpp"
#include "control/status/metrics.hpp"
#include "control/status/status.hpp"
#include "control/vm/vm_registry.hpp"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

constexpr char primary_answer[] = R"({
    "role": "primary", "state": "protecting", "degraded": "", "peer-gpu": "pthread-haswell",
    "standby-address": "",
    "epoch": 1042, "committed-epoch": 1041, "appended": 50010, "sent": 50010, "received": 50008, "executed": 50007,
    "lag-entries": 3, "lag-bytes": 12288, "lag-ms": 4, "sent-bytes": 3145728, "received-bytes": 2048,
    "digests-compared": 1200, "digests-different": 2, "digests-repaired": 2, "memory-shipped": 1, "held-bytes": 0,
    "registry-bytes": 4096, "transferred-bytes": 1048576, "held-back-ns": 2500000, "connections": 1, "faults": 0,
    "round-trip-ms": 1, "compression-saved-bytes": 524288, "something-new": {"a": [1]}})";

replication_status primary() {
    return parse_replication(nlohmann::json::parse(primary_answer)).value();
}

TEST(replication_status, is_read_from_the_devices_answer) {
    const auto r = primary();
    EXPECT_EQ(r.role, "primary");
    EXPECT_EQ(r.state, "protecting");
    EXPECT_EQ(r.epoch, 1042u);
    EXPECT_EQ(r.committed_epoch, 1041u);
    EXPECT_EQ(r.lag_entries, 3u);
    EXPECT_EQ(r.lag_bytes, 12288u);
    EXPECT_EQ(r.digests_different, 2u);
    EXPECT_EQ(r.held_back_ns, 2'500'000u);
    EXPECT_EQ(r.peer_gpu, "pthread-haswell");
}

TEST(replication_status, role_and_state_may_be_the_headers_numbers) {
    const auto r = parse_replication({{"role", 2u}, {"state", 8u}}).value();
    EXPECT_EQ(r.role, "standby");
    EXPECT_EQ(r.state, "taken-over");
    EXPECT_EQ(parse_replication({{"role", 7u}, {"state", 1u}})->role, "unknown (7)");
}

TEST(replication_status, what_is_no_such_answer) {
    for (const char* text : {"null", "3", "\"x\"", "[]", "{}", R"({"epoch": 3})"})
        EXPECT_FALSE(parse_replication(nlohmann::json::parse(text))) << text;
    // Members of the wrong kind are as if they were not there.
    const auto r =
        parse_replication({{"role", "primary"}, {"epoch", "many"}, {"lag-ms", -1}, {"degraded", 5}});
    EXPECT_EQ(r->epoch + r->lag_ms, 0u);
    EXPECT_EQ(r->degraded, "");
}

TEST(replication_status, text_of_a_primary) {
    device_reading now{"vgpu0", "PoCL", primary(), 0, 0}, before = now;
    before.replication->sent_bytes -= 1 << 20;
    set_rates(now, before, 0.5);
    EXPECT_EQ(status_text({{"demo", 42, "", {now}}}),
              "demo (process 42)\n"
              "  vgpu0 (PoCL): primary, protecting\n"
              "    other end  pthread-haswell\n"
              "    epoch      1,042, 1,041 committed\n"
              "    lag        3 ops, 12.0 KiB, 4 ms; its GPU is 0 ms behind\n"
              "    link       2.0 MiB/s out, 0 B/s in; round trip 1 ms; 1 connections so far\n"
              "    saved      512.0 KiB by compression\n"
              "    digests    1,200 chunks compared, 2 different, 2 repaired\n"
              "    transfers  1.0 MiB of state; the guest's commands were held back 2.5 ms at most\n"
              "    shipped    1 memory objects after each launch: they differed repeatedly\n");
    EXPECT_FALSE(anything_wrong({{"demo", 42, "", {now}}}));
}

TEST(replication_status, degraded_is_visible_and_counts) {
    auto r = primary();
    r.state = "disconnected";
    r.degraded = "the standby has not answered for 500 ms";
    const std::vector<vm_reading> vms{{"demo", 42, "", {{"vgpu0", "", r, 0, 0}}}};
    EXPECT_NE(status_text(vms).find("    DEGRADED   the standby has not answered for 500 ms\n"),
              std::string::npos);
    EXPECT_TRUE(anything_wrong(vms));
    EXPECT_EQ(status_json(vms)[0]["devices"][0]["replication"]["degraded"], r.degraded);
    EXPECT_EQ(status_json(vms)[0]["devices"][0]["replication"]["lag-bytes"], 12288);
}

TEST(replication_status, text_of_others) {
    EXPECT_EQ(status_text({}), "No VM of this user runs.\n");
    replication_status standby;
    standby.role = "standby";
    standby.state = "ready";
    standby.standby_address = "127.0.0.1:7000";
    standby.held_bytes = 2048;
    standby.faults = 3;
    standby.compression_saved_bytes = 3 << 20;
    const auto text = status_text({{"a", 0, "", {{"vgpu0", "", standby, 0, 0}}},
                                   {"b", 1, "QEMU gives no answer", {}},
                                   {"c", 2, "", {{"vgpu0", "", replication_status{}, 0, 0}}},
                                   {"d", 3, "", {{"vgpu0", "", std::nullopt, 0, 0}}},
                                   {"e", 4, "", {}}});
    for (const char* part :
         {"a\n  vgpu0: standby, ready\n    listens    127.0.0.1:7000\n", "    held       2.0 KiB\n",
          "    faults     3 entries", "    saved      3.0 MiB by compression\n",
          "b (process 1)\n  QEMU gives no answer\n", "  vgpu0: not replicated\n",
          "  vgpu0: this QEMU knows no replication\n", "e (process 4)\n  has no GPU\n"})
        EXPECT_NE(text.find(part), std::string::npos) << part << "in\n" << text;
}

TEST(replication_status, a_counter_that_went_backwards_gives_no_rate) {
    auto more = primary();
    more.sent_bytes += 1;
    device_reading now{"vgpu0", "", primary(), 0, 0};
    const device_reading before{"vgpu0", "", more, 0, 0};
    set_rates(now, before, 1);
    EXPECT_EQ(now.sent_bytes_per_s, 0);
}

// ---- Prometheus

TEST(metrics, have_units_in_their_names_and_help) {
    auto r = primary();
    r.degraded = "why \"not\"";
    const auto text = prometheus::TextSerializer().Serialize(
        metric_families({{"demo", 42, "", {{"vgpu0", "PoCL", r, 0, 0}}}, {"gone", 43, "no answer", {}}}));
    for (const char* line :
         {"# TYPE kagemusha_vm_up gauge\n", "kagemusha_vm_up{vm=\"demo\"} 1\n",
          "kagemusha_vm_up{vm=\"gone\"} 0\n",
          R"(kagemusha_replication_info{vm="demo",device="vgpu0",role="primary",state="protecting"} 1)",
          "kagemusha_replication_degraded{vm=\"demo\",device=\"vgpu0\",reason=\"why \\\"not\\\"\"} 1\n",
          "# HELP kagemusha_replication_lag_seconds Age of the oldest log entry that",
          "kagemusha_replication_lag_seconds{vm=\"demo\",device=\"vgpu0\"} 0.004",
          "kagemusha_replication_lag_bytes{vm=\"demo\",device=\"vgpu0\"} 12288\n",
          "# TYPE kagemusha_replication_sent_bytes_total counter\n",
          "kagemusha_replication_sent_bytes_total{vm=\"demo\",device=\"vgpu0\"} 3145728\n",
          "kagemusha_replication_digests_different_total{vm=\"demo\",device=\"vgpu0\"} 2\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
    for (const auto& family : metric_families({})) {
        EXPECT_FALSE(family.help.empty()) << family.name;
        EXPECT_EQ(family.name.ends_with("_total"), family.type == prometheus::MetricType::Counter)
            << family.name;
        EXPECT_TRUE(family.metric.empty()) << family.name;
    }
}

TEST(metrics, certificates_of_either_role_have_days_left) {
    std::vector<vm_reading> vms(1);
    vms[0].name = "web-standby";
    vms[0].supervisor = {
        {"role", "standby"},
        {"certificates", {{{"name", "standby of web"}, {"expires_at_s", 9}, {"days_left", 13}}}}};
    const auto text = prometheus::TextSerializer().Serialize(metric_families(vms));
    EXPECT_NE(
        text.find(
            "kagemusha_vm_certificate_days_left{vm=\"web-standby\",certificate=\"standby of web\"} 13\n"),
        std::string::npos)
        << text;
}

TEST(metrics, of_a_supervised_vm_are_those_of_whoever_runs_it) {
    const nlohmann::json said{{"role", "primary"},
                              {"protected", true},
                              {"checkpoints", 1200},
                              {"early_checkpoints", 200},
                              {"pause_us", 2500},
                              {"epoch_us", 40000},
                              {"total_pause_us", 3000000},
                              {"checkpoint_age_ms", 1500},
                              {"unprotected_ms", 0},
                              {"standby_problem", "no etcd"},
                              {"warning", ""}};
    const auto text = prometheus::TextSerializer().Serialize(metric_families(
        {{"web", 1, "", {}, said}, {"waits", 2, "", {}, {{"role", "standby"}, {"checkpoints", 7}}}}));
    for (const char* line :
         {"kagemusha_vm_protected{vm=\"web\"} 1\n", "kagemusha_vm_checkpoints_total{vm=\"web\"} 1200\n",
          "kagemusha_vm_checkpoints_early_total{vm=\"web\"} 200\n",
          "kagemusha_vm_checkpoints_paused_seconds_total{vm=\"web\"} 3\n",
          "kagemusha_vm_checkpoint_pause_seconds{vm=\"web\"} 0.0025",
          "kagemusha_vm_checkpoint_epoch_seconds{vm=\"web\"} 0.04",
          "kagemusha_vm_checkpoint_age_seconds{vm=\"web\"} 1.5",
          "kagemusha_vm_unprotected_seconds{vm=\"web\"} 0\n",
          "kagemusha_vm_standby_problem{vm=\"web\",reason=\"no etcd\"} 1\n",
          "kagemusha_vm_warning{vm=\"web\",reason=\"\"} 0\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
    EXPECT_EQ(text.find("checkpoints_total{vm=\"waits\"}"), std::string::npos) << text;
}

TEST(replication_status, says_how_long_an_epoch_was_and_what_the_checkpoints_cost) {
    nlohmann::json said{{"role", "primary"}, {"state", "protecting"}, {"protected", true},
                        {"term", 3},         {"checkpoints", 1200},   {"epoch_us", 23400},
                        {"pause_us", 2500},  {"paused_percent", 4.26}};
    EXPECT_NE(
        status_text({{"web", 1, "", {}, said}})
            .find("primary, protecting, term 3, 1200 checkpoints (the last one after 23 ms; 4.3 % of the "
                  "time paused)\n"),
        std::string::npos);
    said["epoch_us"] = 0; // none yet
    EXPECT_EQ(status_text({{"web", 1, "", {}, said}}).find("the last one"), std::string::npos);
}

// ---- a QEMU that is none

class fixture : public testing::Test {
protected:
    fixture() {
        auto name = (fs::temp_directory_path() / "kagemusha-status-XXXXXX").string();
        EXPECT_TRUE(::mkdtemp(name.data()));
        directory = name;
        ::setenv("KAGEMUSHA_RUNTIME_DIR", (directory + "/run").c_str(), 1);
    }
    ~fixture() override {
        ::unsetenv("KAGEMUSHA_RUNTIME_DIR");
        std::error_code ignored;
        fs::remove_all(directory, ignored);
    }
    std::string directory;
};

// Answers one client with what a real QEMU would say to these commands.
class canned_qemu {
public:
    using answers = std::map<std::string, std::string>; // "command property" → JSON after {"id": …,
    canned_qemu(const std::string& path, std::string greeting, answers all)
        : listening_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        path.copy(name.sun_path, sizeof name.sun_path - 1);
        EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
        EXPECT_EQ(::listen(listening_.get(), 1), 0);
        thread_ = std::thread([this, greeting = std::move(greeting), all = std::move(all)] {
            const unique_fd client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            say(client.get(), greeting);
            std::string line;
            for (char c; ::read(client.get(), &c, 1) == 1;) {
                if (c != '\n') {
                    line += c;
                    continue;
                }
                const auto command = nlohmann::json::parse(std::exchange(line, {}));
                auto key = command["execute"].get<std::string>();
                if (command.contains("arguments") && command["arguments"].contains("property"))
                    key += " " + command["arguments"]["property"].get<std::string>();
                const auto found = all.find(key);
                if (found == all.end())
                    continue; // hangs
                say(client.get(), R"({"event": "RTC_CHANGE", "data": {}, "timestamp": {}})");
                say(client.get(), "{\"id\": " + command["id"].dump() + ", " + found->second + "}");
            }
        });
    }
    ~canned_qemu() {
        ::shutdown(listening_.get(), SHUT_RDWR);
        thread_.join();
    }

private:
    static void say(int fd, const std::string& line) {
        const auto text = line + "\r\n";
        EXPECT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    }
    unique_fd listening_;
    std::thread thread_;
};

constexpr char greeting[] = R"({"QMP": {"version": {"qemu": {"major": 10}}, "capabilities": []}})";
const std::string peripherals = R"("return": [{"name": "type", "type": "string"},
    {"name": "vgpu0", "type": "child<virtio-vgpu-pci>"}, {"name": "ports", "type": "child<virtio-serial-pci>"}])";

std::string one_line(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

TEST_F(fixture, a_vm_is_read_through_qmp) {
    const auto socket = directory + "/qmp";
    canned_qemu qemu(socket, greeting,
                     {{"qmp_capabilities", R"("return": {})"},
                      {"qom-list", one_line(peripherals)},
                      {"qom-get gpu-name", R"("return": "PoCL")"},
                      {"qom-get unsupported", R"("return": "cuIpcGetMemHandle 2")"},
                      {"qom-get replication", one_line("\"return\": " + std::string(primary_answer))}});
    const auto reading = read_vm({"demo", 42, socket});
    EXPECT_EQ(reading.problem, "");
    ASSERT_EQ(reading.devices.size(), 1u);
    EXPECT_EQ(reading.devices[0].name, "vgpu0");
    EXPECT_EQ(reading.devices[0].gpu, "PoCL");
    EXPECT_EQ(reading.devices[0].unsupported, "cuIpcGetMemHandle 2");
    EXPECT_EQ(reading.devices[0].replication, primary());
}

TEST_F(fixture, an_older_qemu_has_no_such_property) {
    const auto socket = directory + "/qmp";
    canned_qemu qemu(socket, greeting,
                     {{"qmp_capabilities", R"("return": {})"},
                      {"qom-list", one_line(peripherals)},
                      {"qom-get gpu-name", R"("return": "PoCL")"},
                      {"qom-get unsupported", R"("error": {"class": "GenericError", "desc": "not found"})"},
                      {"qom-get replication", R"("error": {"class": "GenericError", "desc": "not found"})"}});
    const auto reading = read_vm({"demo", 42, socket});
    EXPECT_EQ(reading.problem, "");
    ASSERT_EQ(reading.devices.size(), 1u);
    EXPECT_FALSE(reading.devices[0].replication);
}

TEST_F(fixture, a_qemu_that_does_not_answer_is_told) {
    std::string error;
    const auto socket = directory + "/qmp";
    {
        canned_qemu qemu(socket, greeting, {});
        EXPECT_FALSE(qmp_client::connect(socket, error, std::chrono::milliseconds(50)));
        EXPECT_EQ(error, "QEMU's monitor " + socket + " gives no answer within 50 ms");
    }
    fs::remove(socket);
    {
        canned_qemu ssh(socket, "SSH-2.0-OpenSSH_9.2", {});
        EXPECT_FALSE(qmp_client::connect(socket, error));
        EXPECT_EQ(error, socket + " does not speak QMP");
    }
    EXPECT_NE(read_vm({"demo", 42, directory + "/nobody"}).problem.find("No such file"), std::string::npos);
}

TEST_F(fixture, what_qemu_refuses_is_said_in_its_words) {
    std::string error;
    const auto socket = directory + "/qmp";
    canned_qemu qemu(socket, greeting,
                     {{"qmp_capabilities", R"("return": {})"},
                      {"quit", R"("error": {"class": "GenericError", "desc": "not now"})"}});
    auto client = qmp_client::connect(socket, error);
    ASSERT_TRUE(client) << error;
    EXPECT_FALSE(client->ask("quit", {}, error));
    EXPECT_EQ(error, "QEMU refuses quit: not now");
}

// ---- which VMs run

TEST_F(fixture, a_vm_is_registered_as_long_as_it_runs) {
    std::string error;
    auto vm = vm_registration::make("demo", error);
    ASSERT_TRUE(vm) << error;
    auto found = running_vms(error);
    ASSERT_EQ(found.size(), 1u) << error;
    EXPECT_EQ(found[0].name, "demo");
    EXPECT_EQ(found[0].pid, ::getpid());
    EXPECT_EQ(found[0].qmp_socket, vm->qmp_socket());
    EXPECT_FALSE(vm_registration::make("demo", error));
    EXPECT_EQ(error, "a VM with the name demo runs already");
    error.clear();
    vm.reset();
    EXPECT_TRUE(running_vms(error).empty());
    EXPECT_EQ(error, "");
    EXPECT_TRUE(fs::is_empty(directory + "/run"));
}

// systemd-tmpfiles leaves alone what lies below a directory that it cannot lock for itself.
TEST_F(fixture, a_cleaner_of_temporary_files_cannot_have_the_directory_of_a_vm_that_runs) {
    std::string error;
    auto one = vm_registration::make("one", error);
    auto two = vm_registration::make("two", error);
    ASSERT_TRUE(one && two) << error;
    const unique_fd cleaner(::open((directory + "/run").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(cleaner);
    EXPECT_NE(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0);
    one.reset();
    EXPECT_NE(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0);
    two.reset();
    EXPECT_EQ(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_F(fixture, files_of_killed_processes_are_removed) {
    std::string error;
    runtime_directory(error);
    std::ofstream(directory + "/run/old.json") << R"({"name": "old", "pid": 1, "qmp": "/x"})";
    EXPECT_TRUE(running_vms(error).empty());
    EXPECT_FALSE(fs::exists(directory + "/run/old.json"));
    EXPECT_TRUE(vm_registration::make("old", error)) << error;
}

TEST_F(fixture, names_and_directories_that_are_none) {
    std::string error;
    for (const std::string bad : {"", "a/b", "..", ".x", "a b", "a\nb"})
        EXPECT_FALSE(vm_registration::make(bad, error)) << bad;
    fs::create_directory(directory + "/open");
    fs::permissions(directory + "/open", fs::perms::all);
    ::setenv("KAGEMUSHA_RUNTIME_DIR", (directory + "/open").c_str(), 1);
    EXPECT_FALSE(vm_registration::make("demo", error));
    EXPECT_NE(error.find("only this user can write"), std::string::npos);
    status_options options;
    options.vm = "nobody";
    ::setenv("KAGEMUSHA_RUNTIME_DIR", (directory + "/run").c_str(), 1);
    error.clear();
    EXPECT_TRUE(chosen_vms(options, error).empty());
    EXPECT_EQ(error, "no VM of this user with the name nobody runs");
}

} // namespace
} // namespace kagemusha::control
