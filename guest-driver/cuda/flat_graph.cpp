// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs as lists of work: how one is read, and whether another can take its place.
#include "graph.hpp"

#include "driver.hpp"

#include <unordered_set>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t most_steps = 1u << 20;

// `before`: the steps that all of it is behind; `last`: those that are behind all of it.
bool read(const graph& from, const std::vector<std::size_t>& before, flat_graph& to,
          std::vector<std::size_t>& last, unsigned depth) {
    const std::vector<graph_node*> order = from.sorted();
    if ((order.empty() && !from.nodes.empty()) || depth > most_depth)
        return false;
    std::map<const graph_node*, std::vector<std::size_t>> ends; // steps behind which a node is done
    std::unordered_set<const graph_node*> needed;
    for (const graph_node* node : order) {
        std::vector<std::size_t> needs;
        for (const graph_node* need : node->needs) {
            needs.insert(needs.end(), ends[need].begin(), ends[need].end());
            needed.insert(need);
        }
        if (node->needs.empty())
            needs = before;
        if (to.steps.size() >= most_steps || to.children.size() >= most_steps)
            return false;
        if (!node->child) {
            ends[node] = {to.steps.size()};
            to.steps.push_back(
                {node->number, node->what ? node->what->copy() : nullptr, node->kind, std::move(needs)});
            continue;
        }
        const std::size_t place = to.children.size();
        to.children.push_back({node->number, to.steps.size(), 0, 0});
        if (!read(*node->child, needs, to, ends[node], depth + 1))
            return false;
        child_steps& made = to.children[place];
        made.count = to.steps.size() - made.first;
        made.children = to.children.size() - place - 1;
    }
    for (const graph_node* node : order)
        if (!needed.contains(node))
            last.insert(last.end(), ends[node].begin(), ends[node].end());
    if (order.empty())
        last = before;
    return true;
}

// A part's own needs: what it is behind as a whole may change.
bool same_needs(const std::vector<std::size_t>& of_part, std::size_t first,
                const std::vector<std::size_t>& other) {
    std::size_t at = 0;
    for (const std::size_t need : of_part)
        if (need >= first && (at >= other.size() || other[at++] != need - first))
            return false;
    return at == other.size();
}

} // namespace

bool flat_graph::read(const graph& from) {
    std::vector<std::size_t> last;
    return cuda::read(from, {}, *this, last, 0);
}

CUgraphExecUpdateResult flat_graph::compare(const child_steps& part, std::size_t behind,
                                            const flat_graph& other) const {
    if (other.steps.size() != part.count || other.children.size() != part.children)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (std::size_t i = 0; i < part.children; ++i) {
        const child_steps &mine = children[behind + i], &theirs = other.children[i];
        if (mine.first - part.first != theirs.first || mine.count != theirs.count ||
            mine.children != theirs.children)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    bool same_kinds = true;
    for (std::size_t i = 0; i < part.count; ++i) {
        const graph_step &mine = steps[part.first + i], &theirs = other.steps[i];
        if (!same_needs(mine.needs, part.first, theirs.needs))
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        same_kinds = same_kinds && mine.kind == theirs.kind;
    }
    return same_kinds ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
}

void flat_graph::take(const child_steps& part, flat_graph& other) {
    for (std::size_t i = 0; i < part.count; ++i)
        steps[part.first + i].what = std::move(other.steps[i].what);
}

} // namespace kagemusha::cuda
