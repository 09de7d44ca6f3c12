// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What the tracer did, in /sys/kernel/debug/kagemusha-vgpuN/tracer: a line for each counter, with
 * its sum and what each mode has of it. The first line names the columns. Writing to the file sets
 * all of them to 0. `tracer_without` beside it is for tests: the sum of what is to fail (enum
 * kvt_without).
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "kvg.h"

/* `off` traces nothing. */
#define FIRST_MODE KAGEMUSHA_VGPU_TRACE_PAGE

static const char *const counter_names[KVT_COUNTER_COUNT] = {
	[KVT_FAULTS] = "faults",
	[KVT_FAULTS_KERNEL] = "faults_kernel",
	[KVT_OPENED] = "opened",
	[KVT_FLUSHES] = "flushes",
	[KVT_PAGES_COMPARED] = "pages_compared",
	[KVT_PAGES_UNCHANGED] = "pages_unchanged",
	[KVT_RUNS] = "runs",
	[KVT_PAGES_LENT] = "pages_lent",
	[KVT_BYTES_DATA] = "bytes_data",
	[KVT_BYTES_STREAM] = "bytes_stream",
	[KVT_REQUESTS] = "requests",
	[KVT_FOLLOWED] = "followed",
	[KVT_PTRACE_STORES] = "ptrace_stores",
	[KVT_EMULATED] = "emulated",
	[KVT_ELSEWHERE] = "elsewhere",
	[KVT_OPENED_AHEAD] = "opened_ahead",
	[KVT_KEPT_OPEN] = "kept_open",
	[KVT_LOG_READS] = "log_reads",
	[KVT_LOG_PAGES] = "log_pages",
	[KVT_PAGES_COPIED] = "pages_copied",
	[KVT_SHADOWS_KEPT] = "snapshots_kept",
	[KVT_STEPPED] = "stepped",
	[KVT_STEPS_NESTED] = "steps_nested",
	[KVT_REASONS + KVT_REASON_NONE] = "decoded",
	[KVT_REASONS + KVT_REASON_UNDECODED] = "left_undecoded",
	[KVT_REASONS + KVT_REASON_NO_STORE] = "left_no_store",
	[KVT_REASONS + KVT_REASON_INSTRUCTION] = "left_instruction",
	[KVT_REASONS + KVT_REASON_OPERAND] = "left_operand",
	[KVT_REASONS + KVT_REASON_ACCESS] = "left_access",
};

void kvt_count(const struct kvg_range *range, enum kvt_counter counter, u64 by)
{
	atomic64_add(by, &range->dev->kvt_core_statistics.counters[range->trace->mode][counter]);
}

bool kvt_without(const struct kvg_range *range, enum kvt_without what)
{
	return unlikely(READ_ONCE(range->dev->kvt_core_without) & what);
}

static int statistics_show(struct seq_file *file, void *unused)
{
	struct kvg_device *dev = file->private;
	u32 mode;
	int i;

	seq_puts(file, "counter all");
	for (mode = FIRST_MODE; mode < KAGEMUSHA_VGPU_TRACE_MODE_COUNT; mode++)
		seq_printf(file, " %s", kvt_mode_name(mode));
	seq_putc(file, '\n');
	for (i = 0; i < KVT_COUNTER_COUNT; i++) {
		s64 all = 0;

		for (mode = FIRST_MODE; mode < KAGEMUSHA_VGPU_TRACE_MODE_COUNT; mode++)
			all += atomic64_read(&dev->kvt_core_statistics.counters[mode][i]);
		seq_printf(file, "%s %lld", counter_names[i], all);
		for (mode = FIRST_MODE; mode < KAGEMUSHA_VGPU_TRACE_MODE_COUNT; mode++)
			seq_printf(file, " %lld",
				   atomic64_read(&dev->kvt_core_statistics.counters[mode][i]));
		seq_putc(file, '\n');
	}
	return 0;
}

static int statistics_open(struct inode *inode, struct file *file)
{
	return single_open(file, statistics_show, inode->i_private);
}

static ssize_t statistics_write(struct file *file, const char __user *data, size_t bytes,
				loff_t *position)
{
	struct kvg_device *dev = ((struct seq_file *)file->private_data)->private;
	u32 mode;
	int i;

	for (mode = FIRST_MODE; mode < KAGEMUSHA_VGPU_TRACE_MODE_COUNT; mode++)
		for (i = 0; i < KVT_COUNTER_COUNT; i++)
			atomic64_set(&dev->kvt_core_statistics.counters[mode][i], 0);
	return bytes;
}

static const struct file_operations statistics_operations = {
	.owner = THIS_MODULE,
	.open = statistics_open,
	.read = seq_read,
	.write = statistics_write,
	.llseek = seq_lseek,
	.release = single_release,
};

/* Without debugfs there are none; nothing depends on them. */
void kvt_stats_add(struct kvg_device *dev)
{
	dev->debugfs = debugfs_create_dir(dev->name, NULL);
	debugfs_create_file("tracer", 0600, dev->debugfs, dev, &statistics_operations);
	debugfs_create_u32("tracer_without", 0600, dev->debugfs, &dev->kvt_core_without);
}

void kvt_stats_remove(struct kvg_device *dev)
{
	debugfs_remove_recursive(dev->debugfs); /* waits for whoever reads */
	dev->debugfs = NULL;
}
