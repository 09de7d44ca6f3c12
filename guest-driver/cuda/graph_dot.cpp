// SPDX-License-Identifier: GPL-2.0-or-later
//
// A graph as a picture in the language of Graphviz. Each graph is a cluster; a child's is named by its node.
#include "driver.hpp"
#include "graph_calls.hpp"
#include "node_work.hpp"

#include <cstdio>
#include <sstream>

namespace kagemusha::cuda {
namespace {

const char* name_of(CUgraphNodeType kind) {
    switch (kind) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
        return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return "GRAPH";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return "EVENT_RECORD";
    default:
        return "EMPTY";
    }
}

void write_quoted(std::ostream& out, std::string_view text) {
    for (const char letter : text) {
        if (letter == '"' || letter == '\\')
            out << '\\';
        out << letter;
    }
}

void write_label(std::ostream& out, const graph_node& node, unsigned flags) {
    out << name_of(node.kind);
    const auto* const launch = dynamic_cast<const kernel_work*>(node.what.get());
    if (launch && the_driver().functions.has(launch->called)) {
        out << "\\n";
        write_quoted(out, launch->called->name);
    }
    if (launch && flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE) {
        const launch_shape& size = launch->shape;
        out << "\\ngrid " << size.grid[0] << 'x' << size.grid[1] << 'x' << size.grid[2] << "\\nblock "
            << size.block[0] << 'x' << size.block[1] << 'x' << size.block[2] << "\\nshared memory "
            << size.shared_bytes;
    }
    if (flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES))
        out << "\\nnode " << static_cast<const void*>(&node);
}

// `number` of this graph; `last` of those that have one.
void write(std::ostream& out, const graph& one, unsigned number, unsigned& last, unsigned flags) {
    std::map<const graph_node*, std::string> names;
    std::vector<std::pair<const graph*, unsigned>> children;
    out << "subgraph cluster_" << number << " {\nlabel=\"graph_" << number << "\";\n";
    for (const auto& node : one.nodes) {
        std::string& name = names[node.get()];
        name = "\"graph_" + std::to_string(number) + "_node_" + std::to_string(names.size() - 1) + "\"";
        out << name << " [shape=\"box\" label=\"";
        write_label(out, *node, flags);
        if (node->child) {
            children.emplace_back(node->child.get(), ++last);
            out << "\\ngraph_" << last;
        }
        out << "\"];\n";
    }
    for (const auto& node : one.nodes)
        for (const graph_node* need : node->needs)
            out << names[need] << " -> " << names[node.get()] << ";\n";
    out << "}\n";
    for (const auto& [child, its] : children)
        write(out, *child, its, last, flags);
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int flags) {
    return guarded([&] {
        std::ostringstream out;
        const CUresult error = of_graph(handle, [&](const graph& one) {
            if (!path)
                return CUDA_ERROR_INVALID_VALUE;
            unsigned last = 0;
            out << "digraph dot {\n";
            write(out, one, 0, last, flags);
            out << "}\n";
            return CUDA_SUCCESS;
        });
        if (error)
            return error;
        const std::string text = out.str();
        std::FILE* const file = std::fopen(path, "w");
        if (!file)
            return CUDA_ERROR_OPERATING_SYSTEM;
        const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
        return std::fclose(file) == 0 && whole ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    });
}

} // namespace kagemusha::cuda
