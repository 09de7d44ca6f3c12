// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A byte string in chunks of 32 KiB, each physically contiguous.
 *
 * A request's stream and tables together reach 3.4 MiB. One kmalloc of that size fails on a
 * fragmented guest, and a kvmalloc'd one needs a descriptor for every page, which is more than a
 * ring has. Chunks of 32 KiB are the largest that the allocator does not refuse for fragmentation,
 * and keep the largest request at about 110 descriptors.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kvg.h"

u32 kvg_blob_max_chunks(u64 bytes)
{
	return DIV_ROUND_UP_ULL(bytes, KVG_BLOB_CHUNK_BYTES);
}

/* `capacity` is what the content can need at most; memory is taken only as the content grows. */
int kvg_blob_init(struct kvg_blob *blob, u32 capacity, struct kvg_spare_chunks *spare)
{
	u32 chunks = kvg_blob_max_chunks(capacity);

	memset(blob, 0, sizeof(*blob));
	blob->capacity = capacity;
	blob->chunk_capacity = chunks;
	blob->spare = spare;
	if (chunks <= 1) {
		blob->chunks = &blob->single;
		return 0;
	}
	blob->chunks = kcalloc(chunks, sizeof(*blob->chunks), GFP_KERNEL_ACCOUNT);
	return blob->chunks ? 0 : -ENOMEM;
}

/*
 * Kernels clear memory that they give out, which can take longer than all else that a small request
 * needs: the last few chunks of full size that came back are used again.
 */
static void *spare_take(struct kvg_spare_chunks *spare)
{
	void *chunk = NULL;
	u32 i;

	for (i = 0; i < KVG_SPARE_CHUNKS && !chunk; i++)
		if (READ_ONCE(spare->chunks[i]))
			chunk = xchg(&spare->chunks[i], NULL);
	return chunk;
}

static void spare_give(struct kvg_spare_chunks *spare, void *chunk)
{
	u32 i;

	for (i = 0; i < KVG_SPARE_CHUNKS && chunk; i++)
		if (!READ_ONCE(spare->chunks[i]))
			chunk = xchg(&spare->chunks[i], chunk);
	kfree(chunk);
}

void kvg_spare_chunks_free(struct kvg_spare_chunks *spare)
{
	u32 i;

	for (i = 0; i < KVG_SPARE_CHUNKS; i++)
		kfree(spare->chunks[i]);
}

static bool is_full_size(const struct kvg_blob *blob, u32 index)
{
	return blob->capacity - index * KVG_BLOB_CHUNK_BYTES >= KVG_BLOB_CHUNK_BYTES;
}

void kvg_blob_free(struct kvg_blob *blob)
{
	u32 i;

	for (i = 0; i < blob->chunk_count; i++) {
		void *chunk = blob->chunks[i];

		if (is_full_size(blob, i))
			spare_give(blob->spare, chunk);
		else
			kfree(chunk);
	}
	if (blob->chunks != &blob->single)
		kfree(blob->chunks);
	memset(blob, 0, sizeof(*blob));
}

/* The free rest of the last chunk, or a new chunk. *bytes is lowered to what fits there. */
static void *kvg_blob_room(struct kvg_blob *blob, u32 *bytes)
{
	u32 used = blob->bytes % KVG_BLOB_CHUNK_BYTES;
	u32 index = blob->bytes / KVG_BLOB_CHUNK_BYTES;

	if (index == blob->chunk_count) {
		u32 size = min(KVG_BLOB_CHUNK_BYTES, blob->capacity - blob->bytes);
		void *chunk = is_full_size(blob, index) ? spare_take(blob->spare) : NULL;

		if (!chunk)
			chunk = kmalloc(size, GFP_KERNEL_ACCOUNT);
		if (!chunk)
			return NULL;
		blob->chunks[blob->chunk_count++] = chunk;
	}
	*bytes = min(*bytes, KVG_BLOB_CHUNK_BYTES - used);
	return blob->chunks[index] + used;
}

/* Whole pages in the way that is best for them: most of what a program fills comes so. */
static void copy(void *to, const void *from, u32 bytes)
{
	for (; bytes >= PAGE_SIZE; bytes -= PAGE_SIZE) {
		copy_page(to, (void *)from);
		to += PAGE_SIZE;
		from += PAGE_SIZE;
	}
	memcpy(to, from, bytes);
}

/* data NULL: zeroes, to be written later. */
int kvg_blob_append(struct kvg_blob *blob, const void *data, u32 bytes)
{
	if (WARN_ON_ONCE(bytes > blob->capacity - blob->bytes))
		return -E2BIG;
	while (bytes) {
		u32 part = bytes;
		void *room = kvg_blob_room(blob, &part);

		if (!room)
			return -ENOMEM;
		if (data) {
			copy(room, data, part);
			data += part;
		} else {
			memset(room, 0, part);
		}
		blob->bytes += part;
		bytes -= part;
	}
	return 0;
}

/* A part of another one, which is there. */
int kvg_blob_append_part(struct kvg_blob *blob, const struct kvg_blob *from, u32 offset, u32 bytes)
{
	int ret = 0;

	while (bytes && !ret) {
		u32 within = offset % KVG_BLOB_CHUNK_BYTES;
		u32 part = min(bytes, KVG_BLOB_CHUNK_BYTES - within);

		ret = kvg_blob_append(blob, from->chunks[offset / KVG_BLOB_CHUNK_BYTES] + within,
				      part);
		offset += part;
		bytes -= part;
	}
	return ret;
}

int kvg_blob_append_user(struct kvg_blob *blob, const void __user *data, u32 bytes)
{
	if (WARN_ON_ONCE(bytes > blob->capacity - blob->bytes))
		return -E2BIG;
	while (bytes) {
		u32 part = bytes;
		void *room = kvg_blob_room(blob, &part);

		if (!room)
			return -ENOMEM;
		if (copy_from_user(room, data, part))
			return -EFAULT;
		data += part;
		blob->bytes += part;
		bytes -= part;
	}
	return 0;
}

void kvg_blob_write(struct kvg_blob *blob, u32 offset, const void *data, u32 bytes)
{
	while (bytes) {
		u32 within = offset % KVG_BLOB_CHUNK_BYTES;
		u32 part = min(bytes, KVG_BLOB_CHUNK_BYTES - within);

		memcpy(blob->chunks[offset / KVG_BLOB_CHUNK_BYTES] + within, data, part);
		data += part;
		offset += part;
		bytes -= part;
	}
}

void kvg_blob_read(const struct kvg_blob *blob, u32 offset, void *data, u32 bytes)
{
	while (bytes) {
		u32 within = offset % KVG_BLOB_CHUNK_BYTES;
		u32 part = min(bytes, KVG_BLOB_CHUNK_BYTES - within);

		memcpy(data, blob->chunks[offset / KVG_BLOB_CHUNK_BYTES] + within, part);
		data += part;
		offset += part;
		bytes -= part;
	}
}

/* `list` has chunk_count entries. */
void kvg_blob_fill_scatter(const struct kvg_blob *blob, struct scatterlist *list)
{
	u32 left = blob->bytes;
	u32 i;

	sg_init_table(list, blob->chunk_count);
	for (i = 0; i < blob->chunk_count; i++) {
		u32 part = min(left, KVG_BLOB_CHUNK_BYTES);

		sg_set_buf(&list[i], blob->chunks[i], part);
		left -= part;
	}
}
