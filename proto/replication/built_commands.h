/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Two commands of streams that no guest has (proto/abi/vgpu_protocol.h has the others, and its
 * conventions hold here): TAKE_BUILT asks a worker for what its runtime's compiler has made of the
 * session's programs, STORE_BUILT gives it to another host's worker. Neither answers, and neither
 * fails: without it programs are compiled.
 *
 * A pack, which is their payload and that of the message Built:
 *
 *   struct vgpu_built, then for each file struct vgpu_built_file, name, content; each of these two
 *   padded with 0 to a multiple of 8 bytes. A name is a path below the compiler's directory.
 */
#ifndef KAGEMUSHA_BUILT_COMMANDS_H
#define KAGEMUSHA_BUILT_COMMANDS_H

#include "proto/abi/vgpu_protocol.h"

enum vgpu_built_opcode {
	VGPU_CMD_TAKE_BUILT = 24,
	VGPU_CMD_STORE_BUILT = 25,
};

#define VGPU_BUILT_ALL 1u /* also what was taken before */

struct vgpu_cmd_built {
	struct vgpu_cmd cmd;
	__u32 flags; /* TAKE_BUILT: VGPU_BUILT_* */
	__u32 pad;
	struct vgpu_payload_ref data; /* TAKE_BUILT: a payload with VGPU_PAYLOAD_WRITE */
};

struct vgpu_built {
	__u64 bytes; /* of the pack, this included */
	__u32 files;
	__u32 more; /* 1: TAKE_BUILT has more */
};

struct vgpu_built_file {
	__u32 name_bytes;
	__u32 content_bytes;
};

#endif
