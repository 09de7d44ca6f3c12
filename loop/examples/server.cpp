// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-loop-server: three servers whose work is done on the GPU: echo, kv and grep (their .cl files say what
// clients send). SIGINT and SIGTERM end it; it prints its figures then.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "kagemusha/loop.h"
#include "loop_examples.hpp" // made by CMake of the .cl files

namespace {

constexpr unsigned kv_entries = 4096; // of a lane
constexpr unsigned kv_entry_bytes = 128, grep_job_bytes = 4224, grep_jobs = 16;

struct server {
    const char* name;
    const char* source;
    std::string build_options;
    std::uint64_t state_bytes;
    std::uint32_t flags;
};

const server servers[] = {
    {"echo", kagemusha::loop::examples::echo, "", 0, 0},
    {"kv", kagemusha::loop::examples::kv, "-DKV_ENTRIES=" + std::to_string(kv_entries) + "u",
     std::uint64_t{kv_entries} * kv_entry_bytes, KAGEMUSHA_LOOP_LINES},
    {"grep", kagemusha::loop::examples::grep, "", std::uint64_t{grep_jobs} * grep_job_bytes,
     KAGEMUSHA_LOOP_LINES},
};

kagemusha_loop* running = nullptr;

int usage() {
    std::fputs(
        "usage: kagemusha-loop-server echo|kv|grep [--port N] [--root DIRECTORY] [--lanes N] [--items N]\n"
        "                             [--callbacks N] [--image FILE [--driver LIBRARY]]\n"
        "Listens on all addresses; port 0 takes a free one and prints it. --root: the files that grep "
        "reads.\n"
        "--items: work-items of a lane. --callbacks: how many a launch may run; 0: as the times say.\n"
        "--image: the same program as PTX or an image, for CUDA; --driver: another one than libcuda.so.1.\n",
        stderr);
    return 2;
}

int listen_on(unsigned port) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener, 64) != 0) {
        std::fprintf(stderr, "can't listen at port %u: %s\n", port, std::strerror(errno));
        std::exit(1);
    }
    socklen_t bytes = sizeof address;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
    std::printf("listening at port %u\n", ntohs(address.sin_port));
    return listener;
}

bool number(const char* text, unsigned most, unsigned& out) {
    char* end = nullptr;
    const unsigned long got = std::strtoul(text, &end, 10);
    out = static_cast<unsigned>(got);
    return *text >= '0' && *text <= '9' && *end == 0 && got <= most;
}

std::string text_of(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        std::fprintf(stderr, "can't read %s: %s\n", path, std::strerror(errno));
        std::exit(1);
    }
    return {std::istreambuf_iterator<char>(file), {}};
}

int fail(const char* text) {
    std::fprintf(stderr, "%s\n", text);
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    const server* chosen = nullptr;
    for (const server& one : servers)
        if (argc > 1 && std::string_view(argv[1]) == one.name)
            chosen = &one;
    unsigned port = 7000, lanes = 2, items = 0, callbacks = 0;
    const char *root = nullptr, *driver = nullptr;
    std::string image;
    for (int i = 2; chosen != nullptr && i < argc; i += 2) {
        const std::string_view a = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        if (a == "--root")
            root = value;
        else if (a == "--image")
            image = text_of(value);
        else if (a == "--driver")
            driver = value;
        else if (!(a == "--port" && number(value, 65535, port)) &&
                 !(a == "--lanes" && number(value, 64, lanes)) &&
                 !(a == "--items" && number(value, 1024, items)) &&
                 !(a == "--callbacks" && number(value, 1u << 20, callbacks)))
            return usage();
    }
    if (chosen == nullptr)
        return usage();
    kagemusha_loop_options options{};
    options.size = sizeof options;
    if (image.empty()) {
        options.source = chosen->source;
        options.build_options = chosen->build_options.c_str();
    } else {
        options.image = image.c_str();
        options.driver = driver;
    }
    options.lanes = lanes;
    options.items = items;
    options.state_bytes = chosen->state_bytes;
    options.flags = chosen->flags;
    options.callbacks = callbacks;
    options.root = root != nullptr ? open(root, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (root != nullptr && options.root < 0)
        return fail("--root names no directory");
    char error[20000];
    options.listener = listen_on(port);
    if (kagemusha_loop_create(&options, &running, error, sizeof error) != 0)
        return fail(error);
    struct sigaction action{};
    action.sa_handler = [](int) { kagemusha_loop_stop(running); };
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    std::printf("serving %s\n", chosen->name);
    std::fflush(stdout);
    const int result = kagemusha_loop_run(running, error, sizeof error);
    kagemusha_loop_figures f{};
    kagemusha_loop_get_figures(running, &f);
    std::printf("clients %llu, bytes in %llu, out %llu, launches %llu, callbacks %llu, yields %llu, kept "
                "short %llu\n",
                static_cast<unsigned long long>(f.clients), static_cast<unsigned long long>(f.bytes_in),
                static_cast<unsigned long long>(f.bytes_out), static_cast<unsigned long long>(f.launches),
                static_cast<unsigned long long>(f.callbacks), static_cast<unsigned long long>(f.yields),
                static_cast<unsigned long long>(f.shared));
    kagemusha_loop_destroy(running);
    return result == 0 ? 0 : fail(error);
}
