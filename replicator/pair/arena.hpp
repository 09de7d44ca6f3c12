// SPDX-License-Identifier: GPL-2.0-or-later
// arena: memory (a memfd) that workers map as a region and the link sends from or receives into, so that
// content is not copied between the socket and a GPU's driver. On the primary the agent's reads land in it,
// on the standby it is the memory that the entries' payloads name.
//
// Workers can write it: only content lies here, nothing that this process has to believe.
//
// Threads: allocate() and the end of a block on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mirror/sync/sync_agent.hpp"

namespace kagemusha::pair {

class arena final : public mirror::agent_memory {
public:
    // `region` is the number under which workers know it. Null with a sentence in `error`.
    static std::unique_ptr<arena> create(const std::string& name, std::uint64_t bytes, std::uint32_t region,
                                         std::string& error);
    // Memory of this process alone, in huge pages where the kernel has some: no descriptor, no region.
    static std::unique_ptr<arena> create_private(std::uint64_t bytes, std::string& error);
    ~arena();

    // The smallest free range that is large enough; logarithmic in the number of blocks. Blocks may outlive
    // the arena.
    bool allocate(std::uint64_t bytes, block& out) override;
    std::uint64_t capacity() const override;

    std::uint64_t used() const;
    // What may be resident: up to the end of the last block since memory was given back.
    std::uint64_t touched() const;
    // Memory that was used once stays resident, because a page that has to be made anew costs more than
    // filling it does; it goes back to the host when nothing was in use for keep_ms, so that a burst does not
    // stay for ever. Each call gives back a piece. For whoever has a clock: often while trim_at_ms() is not
    // UINT64_MAX.
    void trim(std::uint64_t now_ms);
    std::uint64_t trim_at_ms() const;
    static constexpr std::uint64_t keep_ms = 10'000;
    // Makes the pages of a part of it, which takes a while; then nobody waits for that who copies into it.
    // Anything that goes wrong is found by whoever copies.
    void populate(std::uint64_t from, std::uint64_t bytes);

    int fd() const;
    std::byte* base() const;
    std::uint32_t region() const { return region_; }

private:
    struct state;
    arena(std::shared_ptr<state> s, std::uint32_t region);
    static std::unique_ptr<arena> finish(std::shared_ptr<state> s, void* at, std::uint64_t bytes,
                                         std::uint32_t region, std::string& error);

    std::shared_ptr<state> state_;
    const std::uint32_t region_;
};

} // namespace kagemusha::pair
