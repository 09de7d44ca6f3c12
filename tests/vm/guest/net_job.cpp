// SPDX-License-Identifier: GPL-2.0-or-later
//
// A guest program that speaks, for tests of what a VM may say before and after a takeover (../net_peer.py).
//
// It makes a statement 200 times a second, and one more for each request that it gets: a number, the last
// request that it knows, and two links of a chain. Each link is mixed of the one before, the request's secret
// and new random bits, so a statement that is made a second time, by a VM that was set back, says something
// else. Called with "answers" it makes none but those for requests, once it has got the first. Statements go
// to the peer as UDP packets, and to the console, which nobody holds back.
//
// Called with "keep FILE" it writes each statement into FILE first, as a record of 4 KiB with a checksum, and
// says it when fsync has returned (../test_disks.py). "FINISH01" from the peer ends it.
#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr std::uint16_t port = 7777;
constexpr int period_ms = 5;

struct request { // all numbers are little-endian
    char magic[8];
    std::uint64_t number, secret;
};
struct statement {
    char magic[8];
    std::uint64_t number, heard, before, chain;
};

struct record {
    statement said;
    std::uint64_t filler[506];
    std::uint64_t checksum; // of all before, by mix()
};
static_assert(sizeof(record) == 4096);

// splitmix64's last steps: every bit of both depends on the result.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    std::uint64_t x = a * 0x9e3779b97f4a7c15u ^ b;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

bool keep(int file, const statement& said) {
    record r{};
    r.said = said;
    std::memcpy(r.said.magic, "RECORD01", 8);
    std::uint64_t x = said.chain;
    for (auto& word : r.filler)
        word = x = mix(x, said.number);
    std::uint64_t words[511];
    std::memcpy(words, &r, sizeof words);
    for (const auto word : words)
        r.checksum = mix(r.checksum, word);
    return write(file, &r, sizeof r) == sizeof r && fsync(file) == 0;
}

int fail(const char* what) {
    std::fprintf(stderr, "net_job: %s: %s\n", what, std::strerror(errno));
    return 1;
}

} // namespace

// net_job ADDRESS [quiet|answers|keep FILE]: of the peer; quiet: nothing to the console; answers: it only
// answers
int main(int argc, char** argv) {
    sockaddr_in here{}, there{};
    here.sin_family = there.sin_family = AF_INET;
    here.sin_port = there.sin_port = htons(port);
    const auto called = [&](const char* word) { return argc == 3 && std::strcmp(argv[2], word) == 0; };
    const bool quiet = called("quiet"), only_answers = called("answers");
    const bool keeps = argc == 4 && std::strcmp(argv[2], "keep") == 0;
    if ((argc != 2 && !quiet && !only_answers && !keeps) || inet_pton(AF_INET, argv[1], &there.sin_addr) != 1)
        return fail("net_job ADDRESS [quiet|answers|keep FILE]");
    const int file = keeps ? open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (keeps && file < 0)
        return fail(argv[3]);
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 ||
        connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0)
        return fail("socket");
    statement said{{'S', 'T', 'A', 'T', 'E', 'D', '0', '1'}, 0, 0, 0, 0};
    for (;;) {
        std::uint64_t secret = 0, random = 0;
        pollfd wait{fd, POLLIN, 0};
        if (poll(&wait, 1, only_answers && said.heard != 0 ? -1 : period_ms) > 0) {
            request asked{};
            const auto got = recv(fd, &asked, sizeof asked, 0);
            if (got >= 8 && std::memcmp(asked.magic, "FINISH01", 8) == 0)
                return 0;
            const bool is_one = got == sizeof asked && std::memcmp(asked.magic, "REQUEST1", 8) == 0;
            if (is_one && asked.number == said.heard + 1) {
                said.heard = asked.number;
                secret = asked.secret;
            } else if (only_answers && !(is_one && asked.number == said.heard)) {
                continue; // it is asked again when the answer was lost
            }
        }
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return fail("getrandom");
        ++said.number;
        said.before = said.chain;
        said.chain = mix(mix(said.before, secret), random);
        if (keeps && !keep(file, said))
            return fail(argv[3]);
        if (!quiet)
            std::printf("said %016llx %016llx\n", static_cast<unsigned long long>(said.number),
                        static_cast<unsigned long long>(said.chain));
        std::fflush(stdout);
        // Nobody may be there, or the queue be full: then it was said to nobody.
        (void)!send(fd, &said, sizeof said, 0);
    }
}
