// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Mode `step`, the plain algorithm: a store faults, its page is opened, the processor executes one
 * instruction with the trap flag set, and the page is closed again. It is here for comparison;
 * other CPUs can store while the page is open. Their stores are not lost, because the flush
 * compares, but nobody sees them one by one.
 *
 * The debug trap comes in a notifier that may not sleep, so the page is closed by a task work, on
 * the way back to the program.
 *
 * A signal may come in the middle. Its frame keeps the trap flag and its handler runs without, so
 * the step ends after the handler. What the handler stores itself finds a step under way and leaves
 * its page open until the next flush, as a second page that one instruction stores into does. A
 * handler that never returns leaves a step behind, which is given up when its thread ends.
 */
#include <linux/hashtable.h>
#include <linux/kdebug.h>
#include <linux/mm.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <asm/debugreg.h>

#include "kvg.h"

struct kvt_step {
	struct hlist_node node;
	struct callback_head work;
	struct task_struct *task;	/* a reference; at most one step each */
	struct mm_struct *mm;		/* only compared: an exec in between ends the step */
	struct kvg_range *range;	/* a reference */
	u32 index;
	bool had_trap_flag;		/* somebody else steps this thread too */
};

/* The notifier takes the lock with interrupts off. */
static DEFINE_RAW_SPINLOCK(steps_lock);
static DEFINE_HASHTABLE(steps, 6);
static atomic_t works = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(works_wait);

static void step_free(struct kvt_step *step)
{
	kvg_range_put(step->range);
	put_task_struct(step->task);
	kfree(step);
}

/* steps_lock is held. */
static struct kvt_step *step_find(const struct task_struct *task)
{
	struct kvt_step *step;

	hash_for_each_possible(steps, step, node, (unsigned long)task)
		if (step->task == task)
			return step;
	return NULL;
}

/* Steps of threads that ended in the middle, or all of them. May sleep; no lock of ours is held. */
static void steps_drop(bool all)
{
	struct kvt_step *step;
	struct hlist_node *next;
	HLIST_HEAD(dropped);
	int bucket;

	raw_spin_lock_irq(&steps_lock);
	hash_for_each_safe(steps, bucket, next, step, node) {
		if (all || READ_ONCE(step->task->exit_state)) {
			hash_del(&step->node);
			hlist_add_head(&step->node, &dropped);
		}
	}
	raw_spin_unlock_irq(&steps_lock);
	hlist_for_each_entry_safe(step, next, &dropped, node)
		step_free(step);
}

void kvt_steps_prune(void)
{
	steps_drop(false);
}

/* Before the thread goes on in its program. */
static void step_end(struct callback_head *work)
{
	struct kvt_step *step = container_of(work, struct kvt_step, work);
	struct kvg_range *range = step->range;
	struct kvt_trace *trace = range->trace;

	mutex_lock(&trace->lock);
	if (__test_and_clear_bit(step->index, trace->open))
		unmap_mapping_range(range->dev->inode->i_mapping,
				    range->offset + ((u64)step->index << PAGE_SHIFT), PAGE_SIZE, 1);
	mutex_unlock(&trace->lock);
	kvt_count(range, KVT_STEPPED, 1);
	step_free(step);
	if (atomic_dec_and_test(&works))
		wake_up_all(&works_wait);
}

/*
 * The page was opened for a store of this thread; it is to be closed after one instruction. The
 * trace's lock is held. Without a step the page stays open until the next flush.
 */
void kvt_step_begin(struct kvg_range *range, u32 index)
{
	struct pt_regs *regs = current_pt_regs();
	struct kvt_step *step;
	bool nested;

	if (kvt_without(range, KVT_WITHOUT_STEPS))
		return;
	step = kzalloc(sizeof(*step), GFP_KERNEL_ACCOUNT);
	if (!step)
		return;
	step->task = get_task_struct(current);
	step->mm = current->mm;
	kref_get(&range->refs);
	step->range = range;
	step->index = index;
	step->had_trap_flag = regs->flags & X86_EFLAGS_TF;
	init_task_work(&step->work, step_end);

	raw_spin_lock_irq(&steps_lock);
	nested = step_find(current);
	if (!nested)
		hash_add(steps, &step->node, (unsigned long)current);
	raw_spin_unlock_irq(&steps_lock);
	if (nested) {
		kvt_count(range, KVT_STEPS_NESTED, 1);
		step_free(step); /* not the last reference of the range: the mapping has one */
		return;
	}
	regs->flags |= X86_EFLAGS_TF;
}

static int on_debug_trap(struct notifier_block *block, unsigned long event, void *data)
{
	const struct die_args *args = data;
	unsigned long *dr6;
	struct kvt_step *step;
	unsigned long flags;
	bool stale, had_trap_flag;

	if (event != DIE_DEBUG || !user_mode(args->regs))
		return NOTIFY_DONE;
	dr6 = (unsigned long *)ERR_PTR(args->err); /* that is how it is handed over */
	if (!(*dr6 & DR_STEP))
		return NOTIFY_DONE;
	raw_spin_lock_irqsave(&steps_lock, flags);
	step = step_find(current);
	stale = step && step->mm != current->mm;
	if (step && !stale)
		hash_del(&step->node);
	raw_spin_unlock_irqrestore(&steps_lock, flags);
	if (!step || stale)
		return NOTIFY_DONE;

	had_trap_flag = step->had_trap_flag;
	atomic_inc(&works);
	if (task_work_add(current, &step->work, TWA_RESUME)) {
		/*
		 * The thread is ending: its page stays open until the next flush, the step is freed
		 * later.
		 */
		raw_spin_lock_irqsave(&steps_lock, flags);
		hash_add(steps, &step->node, (unsigned long)current);
		raw_spin_unlock_irqrestore(&steps_lock, flags);
		atomic_dec(&works);
	}
	if (had_trap_flag)
		return NOTIFY_DONE; /* a debugger waits for this trap */
	args->regs->flags &= ~X86_EFLAGS_TF;
	*dr6 &= ~DR_STEP;
	return NOTIFY_STOP;
}

static struct notifier_block debug_notifier = {
	.notifier_call = on_debug_trap,
	.priority = INT_MAX,
};

int kvt_steps_init(void)
{
	return register_die_notifier(&debug_notifier);
}

/* No mapping is left, so no step begins. */
void kvt_steps_exit(void)
{
	unregister_die_notifier(&debug_notifier); /* waits for whoever is inside */
	wait_event(works_wait, !atomic_read(&works));
	/* the last instructions of step_end */
	synchronize_rcu_tasks();
	steps_drop(true);
}
