// SPDX-License-Identifier: GPL-2.0-or-later
// Packets of hostile clients and pages in which anything is written, into the share arbiter of a GPU. It must
// end each step, keep its bounds, and never let two VMs have the GPU at a time but for those that were given
// up.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "fuzz_input.hpp"
#include "share/arbiter/arbiter.hpp"

using namespace kagemusha;
using namespace kagemusha::share;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

struct host {
    arbiter the{[](connection_id) {}};
    std::map<connection_id, std::unique_ptr<share_page>> pages;
    connection_id next = 1;
    std::uint64_t now = 1;

    void join(std::span<const std::byte> packet) {
        const auto heard = check_hello(packet);
        if (!heard.refusal.empty() || heard.what.role == SHARE_ASKER || pages.size() >= 16)
            return;
        auto page = std::make_unique<share_page>();
        const bool session = heard.what.role == SHARE_SESSION;
        if (the.join(next, heard.what, session ? page.get() : nullptr, now).empty())
            pages[next++] = std::move(page);
    }
    share_page* page(std::uint8_t number) {
        if (pages.empty())
            return nullptr;
        return std::next(pages.begin(), number % pages.size())->second.get();
    }
    connection_id connection(std::uint8_t number) {
        return pages.empty() ? 0 : std::next(pages.begin(), number % pages.size())->first;
    }
    void check() {
        const auto rows = the.rows(now);
        require(rows.size() <= max_vms, "VMs are bounded");
        for (const share_program_row& program : the.programs(now))
            require(program.gpu_ns <= now && program.waited_ns <= now,
                    "no program used more time than there was");
        unsigned holders = 0, shares = 0;
        for (const share_row& row : rows) {
            const auto phase = static_cast<vm_phase>(row.phase);
            holders += phase == vm_phase::running || phase == vm_phase::leaving;
            shares += row.share_permille;
            require(row.cap_permille >= least_permille && row.cap_permille <= whole_permille, "a cap is one");
        }
        require(holders <= 1, "one VM has the GPU");
        require(shares <= whole_permille, "shares are at most the whole");
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    host h;
    for (int steps = 0; !in.empty() && steps < 200; ++steps) {
        const auto kind = in.value<std::uint8_t>();
        const auto number = in.value<std::uint8_t>();
        h.now += in.value<std::uint32_t>();
        switch (kind % 6) {
        case 0: { // a packet as it came
            const auto packet = in.array<std::uint8_t>(in.value<std::uint8_t>());
            h.join(std::as_bytes(std::span(packet)));
            break;
        }
        case 1: { // a hello that is nearly valid
            share_hello said{};
            said.magic = SHARE_MAGIC;
            said.version = SHARE_VERSION;
            said.role = 1 + number % 2;
            said.flags = in.value<std::uint8_t>() % 4;
            said.policy = in.value<std::uint8_t>() % 5;
            said.share_permille = in.value<std::uint16_t>() % 1100;
            said.cap_permille = 1 + in.value<std::uint16_t>() % 1100;
            said.priority = in.value<std::uint8_t>() % 9;
            said.memory_bytes = in.value<std::uint64_t>();
            said.gpu_memory_bytes = in.value<std::uint64_t>();
            said.vm[0] = static_cast<char>('a' + number % 8);
            h.join(std::as_bytes(std::span(&said, 1)));
            break;
        }
        case 2:
            h.the.gone(h.connection(number), h.now);
            h.pages.erase(h.connection(number));
            break;
        case 3:
            h.the.advance(h.now);
            break;
        case 4: // the session's process writes what it likes
            if (share_page* page = h.page(number)) {
                page->word.store(in.value<std::uint64_t>() & 0xf'00000003ull);
                page->busy_ns.store(in.value<std::uint64_t>());
                page->busy_since_ns.store(in.value<std::uint64_t>());
                page->loose_ns.store(in.value<std::uint64_t>());
                page->needs_guest.store(in.value<std::uint8_t>());
            }
            [[fallthrough]];
        default:
            h.the.message(h.connection(number), h.now);
            break;
        }
        h.check();
    }
    return 0;
}
