// SPDX-License-Identifier: GPL-2.0-or-later
// arena: memory (a memfd) that workers map as a region and the link sends from or receives into, so that
// content is not copied between the socket and a GPU's driver. On the primary the agent's reads land in it,
// on the standby it is the memory that the entries' payloads name.
//
// Workers can write it: only content lies here, nothing that this process has to believe.
//
// Threads: allocate() and the end of a block on any thread.
#ifndef KAGEMUSHA_PAIR_ARENA_HPP
#define KAGEMUSHA_PAIR_ARENA_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mirror/mirror_agent.hpp"

namespace kagemusha::pair {

class arena final : public mirror::agent_memory {
public:
    // `region` is the number under which workers know it. Null with a sentence in `error`.
    static std::unique_ptr<arena> create(const std::string& name, std::uint64_t bytes, std::uint32_t region,
                                         std::string& error);
    ~arena();

    // The smallest free range that is large enough; logarithmic in the number of blocks. Blocks may outlive
    // the arena.
    bool allocate(std::uint64_t bytes, block& out) override;
    std::uint64_t capacity() const override;

    std::uint64_t used() const;
    // Given back to the host when nothing is in use, so that one burst does not stay resident for ever.
    std::uint64_t touched() const;

    int fd() const;
    std::byte* base() const;
    std::uint32_t region() const { return region_; }

private:
    struct state;
    arena(std::shared_ptr<state> s, std::uint32_t region);

    std::shared_ptr<state> state_;
    const std::uint32_t region_;
};

} // namespace kagemusha::pair

#endif
