// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage daemon` (kagemushad): owns the clusters of this host. It starts etcd, makes true what is wanted, and
// answers its API at a Unix socket. Its end is no end of a VM: SIGTERM or a crash leave all of them running,
// and the next daemon goes on where this one was.
#pragma once

namespace kagemusha::control::daemon {

// Until SIGTERM, SIGINT or SIGHUP. Exit status of the tool.
int run_daemon();

} // namespace kagemusha::control::daemon
