// SPDX-License-Identifier: GPL-2.0-or-later
//
// See lan.hpp. One thread, one poll(); which frame goes where, and when, ethernet_switch decides.
#include "control/lan/lan.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/unix_socket.hpp"
#include "control/lan/addresses.hpp"
#include "control/lan/ethernet_switch.hpp"
#include "control/lan/frames.hpp"
#include "control/lan/gateway.hpp"
#include "control/lan/trunks.hpp"
#include "control/supervise/control_socket.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control::lan {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

constexpr std::size_t most_unsent_bytes = 4 << 20; // of one port; more is dropped
constexpr unsigned most_nodes = 200;               // of a network with 254 addresses
constexpr std::uint16_t ssh_port = 22;             // of node1
constexpr std::uint64_t ssh_pause_us = 1'000'000;  // after a port of the host was not to be had

std::uint64_t now_us() {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(t.tv_nsec) / 1000;
}

[[noreturn]] void fail(const std::string& why) {
    fmt::print(stderr, "kage: {}\n", why);
    std::exit(125);
}

// A connected QEMU.
struct qemu_port {
    unique_fd fd;
    ethernet_reader reader;
    std::string unsent;
    std::size_t sent = 0; // of it

    std::size_t waiting() const { return unsent.size() - sent; }
};

class network {
public:
    network(std::string folder, const configuration& wanted, std::string text);
    void run();

private:
    json answer(const json& request);
    json connect(const json& wanted);
    void hear(ethernet_switch::port from, std::string_view frame);
    void configure(const configuration& wanted, std::string text);
    void look_for_node1();
    std::string problem() const; // a sentence
    void accept_qemu();
    bool read_from(ethernet_switch::port number, qemu_port& port);
    static bool write_to(qemu_port& port);
    void deliver(std::vector<ethernet_switch::output>& out);
    std::int64_t wait_us() const;

    const std::string folder_;
    configuration has_;
    std::string text_;
    ethernet_switch switch_;
    std::map<ethernet_switch::port, qemu_port> ports_;
    ethernet_switch::port next_ = 1;
    std::uint64_t dropped_ = 0;
    bool over_ = false;
    unsigned forwarded_ = 0;
    bool ssh_open_ = false;
    std::uint64_t ssh_again_us_ = 0; // after a failure
    std::string problem_;            // a sentence
    unique_fd listener_;
    std::optional<control_socket> control_;
    std::vector<std::string> from_gateway_; // sent by libslirp during a call of it
    std::unique_ptr<gateway> gateway_;
    json trunks_wanted_; // as it was told
    std::unique_ptr<trunks> trunks_;
};

network::network(std::string folder, const configuration& wanted, std::string text)
    : folder_(std::move(folder)) {
    const auto path = switch_socket(folder_);
    const auto name = unix_address(path);
    ::unlink(path.c_str());
    listener_ = unique_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // A confined QEMU has a user of its own, and sees this folder; other users can't come here: FOLDER is ours.
    if (!name || !listener_ ||
        ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0 ||
        ::chmod(path.c_str(), 0666) != 0 || ::listen(listener_.get(), 64) != 0)
        fail(fmt::format("cannot listen at {}: {}", path,
                         name ? std::strerror(errno) : "the path is too long"));
    std::string error;
    control_ = control_socket::listen(
        control_path(folder_), [this](const json& request) { return answer(request); }, error);
    if (!control_)
        fail(error);
    trunks_ = std::make_unique<trunks>(
        trunks::handlers{[this]() -> std::uint32_t { return switch_.add(next_, true) ? next_++ : 0; },
                         [this](std::uint32_t link) { switch_.remove(link); },
                         [this](std::uint32_t link, std::string_view frame) { hear(link, frame); }});
    configure(wanted, std::move(text));
}

void network::hear(ethernet_switch::port from, std::string_view frame) {
    std::vector<ethernet_switch::output> out;
    switch_.receive(from, frame, now_us(), out);
    deliver(out);
}

json network::connect(const json& wanted) {
    const auto parsed = parse_trunks(wanted);
    if (!parsed)
        return {{"error", "these are no links to other hosts"}};
    if (const auto why = trunks_->configure(*parsed); !why.empty())
        return {{"error", why}};
    trunks_wanted_ = wanted;
    return {{"done", true}};
}

void network::configure(const configuration& wanted, std::string text) {
    if (!gateway_ || has_.outside != wanted.outside) {
        forwarded_ = 0;
        ssh_open_ = false;
        gateway_.reset();
        gateway_ = std::make_unique<gateway>(
            wanted.outside, [this](std::string_view frame) { from_gateway_.emplace_back(frame); });
    }
    if (ssh_open_ && (has_.ssh_address != wanted.ssh_address || has_.ssh_port != wanted.ssh_port)) {
        gateway_->close(has_.ssh_address, has_.ssh_port);
        ssh_open_ = false;
    }
    problem_.clear();
    ssh_again_us_ = 0;
    has_ = wanted;
    text_ = std::move(text);
    switch_.set_shape(
        {std::uint64_t{has_.bandwidth_mbit} * 1'000'000, std::uint64_t{has_.latency_ms} * 1000});
    for (; forwarded_ < has_.nodes; ++forwarded_)
        if (const auto why = gateway_->forward(exec_socket(folder_, forwarded_ + 1),
                                               node_address(forwarded_ + 1), exec_port);
            !why.empty())
            fail(why);
}

// Its ssh server is reached at the host that it runs on, and only there: its answers leave by the gateway here.
void network::look_for_node1() {
    if (has_.ssh_port == 0)
        return;
    const auto where = switch_.where(node_mac_bytes(has_.name, 1));
    const bool is_here = where && ports_.contains(*where);
    if (is_here == ssh_open_)
        return;
    if (!is_here) {
        gateway_->close(has_.ssh_address, has_.ssh_port);
        ssh_open_ = false;
    } else if (now_us() >= ssh_again_us_) {
        problem_ = gateway_->listen(has_.ssh_address, has_.ssh_port, node_address(1), ssh_port);
        ssh_open_ = problem_.empty();
        ssh_again_us_ = now_us() + ssh_pause_us;
    }
}

std::string network::problem() const {
    if (!problem_.empty() || !ssh_open_ || !gateway_->is_full())
        return problem_;
    return fmt::format("{} connections go in and out: port {} takes no more until some have ended",
                       gateway::max_connections, has_.ssh_port);
}

json network::answer(const json& request) {
    const auto command = request.value("command", json());
    if (command == "status")
        return {{"configuration", text_},
                {"ports", ports_.size()},
                {"problem", problem()},
                {"trunks", trunks_wanted_},
                {"trunk_port", trunks_->port()},
                {"trunks_open", trunks_->open_links()},
                {"frames", switch_.counted().frames},
                {"bytes", switch_.counted().bytes},
                {"dropped", switch_.counted().dropped + dropped_}};
    if (command == "stop") {
        over_ = true;
        return {{"done", true}};
    }
    if (command == "configure") {
        const auto text = request.value("configuration", json());
        const auto wanted = text.is_string() ? parse_configuration(text.get<std::string>()) : std::nullopt;
        if (!wanted)
            return {{"error", "this is no configuration of a network"}};
        configure(*wanted, text.get<std::string>());
        return {{"done", true}};
    }
    if (command == "connect")
        return connect(request.value("trunks", json()));
    return {{"error", "this is no command of a cluster's network"}};
}

void network::accept_qemu() {
    unique_fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd || !switch_.add(next_))
        return; // too many: it is closed
    ports_.emplace(next_++, qemu_port{std::move(fd), {}, {}});
}

bool network::read_from(ethernet_switch::port number, qemu_port& port) {
    char buffer[65536];
    const auto got = ::read(port.fd.get(), buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (got <= 0)
        return false;
    port.reader.feed({buffer, static_cast<std::size_t>(got)});
    std::vector<ethernet_switch::output> out;
    while (const auto frame = port.reader.next())
        switch_.receive(number, frame->payload, now_us(), out);
    deliver(out);
    return !port.reader.broken();
}

bool network::write_to(qemu_port& port) {
    while (port.waiting() > 0) {
        const auto done = ::send(port.fd.get(), port.unsent.data() + port.sent, port.waiting(), MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno == EAGAIN;
        port.sent += static_cast<std::size_t>(done);
    }
    port.unsent.clear();
    port.sent = 0;
    return true;
}

// Also what the gateway answers at once, and what is made of that.
void network::deliver(std::vector<ethernet_switch::output>& out) {
    for (;;) {
        for (auto& one : out) {
            if (one.to == ethernet_switch::gateway) {
                gateway_->input(one.frame);
                continue;
            }
            const auto found = ports_.find(one.to);
            if (found == ports_.end()) {
                dropped_ += trunks_->send(one.to, one.frame) ? 0 : 1;
                continue;
            }
            auto& port = found->second;
            if (port.waiting() + one.frame.size() > most_unsent_bytes) {
                ++dropped_;
                continue;
            }
            port.unsent.erase(0, std::exchange(port.sent, 0));
            put_length(port.unsent, one.frame.size());
            port.unsent += one.frame;
            write_to(port); // a fault shows when it is read
        }
        out.clear();
        if (from_gateway_.empty())
            return;
        for (const auto& frame : std::exchange(from_gateway_, {}))
            switch_.receive(ethernet_switch::gateway, frame, now_us(), out);
    }
}

// In microseconds, unlike poll(): a latency of 1 ms is one of 1 ms. -1: for ever.
std::int64_t network::wait_us() const {
    const auto at = switch_.next_us();
    if (!at)
        return -1;
    const auto now = now_us();
    return *at <= now ? 0 : static_cast<std::int64_t>(*at - now);
}

void network::run() {
    while (!over_) {
        look_for_node1();
        int timeout_ms = -1;
        std::vector<pollfd> fds{{interrupt_fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
        std::vector<ethernet_switch::port> numbers;
        for (const auto& [number, port] : ports_) {
            fds.push_back(
                {port.fd.get(), static_cast<short>(POLLIN | (port.waiting() > 0 ? POLLOUT : 0)), 0});
            numbers.push_back(number);
        }
        const auto of_control = fds.size();
        control_->add_to(fds);
        const auto of_gateway = fds.size();
        gateway_->add_to(fds, timeout_ms);
        trunks_->add_to(fds, timeout_ms);
        auto wait = wait_us();
        if (timeout_ms >= 0 && (wait < 0 || wait > std::int64_t{timeout_ms} * 1000))
            wait = std::int64_t{timeout_ms} * 1000;
        const timespec limit{wait / 1'000'000, wait % 1'000'000 * 1000};
        const bool failed = ::ppoll(fds.data(), fds.size(), wait < 0 ? nullptr : &limit, nullptr) < 0;
        if (failed && errno != EINTR)
            fail(fmt::format("ppoll: {}", std::strerror(errno)));
        if (interrupted_by())
            return;
        gateway_->handle(fds, failed);
        trunks_->handle(fds, failed);
        std::vector<ethernet_switch::output> out;
        switch_.due(now_us(), out);
        deliver(out);
        if (failed)
            continue;
        if (fds[1].revents)
            accept_qemu();
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const auto events = fds[2 + i].revents;
            auto& port = ports_.at(numbers[i]);
            const bool goes_on = ((events & POLLOUT) == 0 || write_to(port)) &&
                                 ((events & ~POLLOUT) == 0 || read_from(numbers[i], port));
            if (!goes_on) {
                switch_.remove(numbers[i]);
                ports_.erase(numbers[i]);
            }
        }
        fds.resize(of_gateway);
        fds.erase(fds.begin(), fds.begin() + static_cast<std::ptrdiff_t>(of_control));
        control_->handle(fds); // last: a new configuration has another gateway
    }
}

} // namespace

std::optional<configuration> parse_configuration(const std::string& text) {
    const auto from = json::parse(text, nullptr, false);
    if (!from.is_object())
        return std::nullopt;
    const auto number = [&](const char* key, std::uint32_t otherwise) {
        const auto found = from.find(key);
        return found != from.end() && found->is_number_unsigned() ? found->get<std::uint32_t>() : otherwise;
    };
    configuration out;
    out.nodes = number("nodes", 0);
    out.outside = from.value("outside", json(true)) == json(true);
    out.bandwidth_mbit = number("bandwidth-mbit", 0);
    out.latency_ms = number("latency-ms", 0);
    out.name = text_in(from, "name");
    out.ssh_address = text_in(from, "ssh-address");
    out.ssh_port = static_cast<std::uint16_t>(std::min<std::uint32_t>(number("ssh-port", 0), 65535));
    return out.nodes <= most_nodes ? std::optional(out) : std::nullopt;
}

std::string switch_socket(const std::string& folder) {
    return folder + "/switch/socket";
}

std::string exec_socket(const std::string& folder, unsigned node) {
    return fmt::format("{}/exec/node{}", folder, node);
}

std::string control_path(const std::string& folder) {
    return folder + "/control";
}

void lan_main(const char* folder, const char* text) {
    const auto wanted = parse_configuration(text);
    if (!wanted)
        fail("this is no configuration of a cluster's network");
    interrupt_fd();
    ::umask(S_IRWXG | S_IRWXO);
    std::error_code error;
    for (const char* below : {"/switch", "/exec"})
        fs::create_directories(std::string(folder) + below, error);
    ::chmod((std::string(folder) + "/switch").c_str(), 0755);
    const unique_fd lock(
        ::open((std::string(folder) + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
        fail(fmt::format("another process is the network of {}", folder));
    network(folder, *wanted, text).run();
    std::exit(0);
}

} // namespace kagemusha::control::lan
