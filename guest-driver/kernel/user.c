// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What one user of the guest may hold of a device, so that nobody can keep the others from
 * computing.
 *
 * Slots of the ring, slots for payloads, pinned pages, open files and the window are shared by all
 * users. Anybody may use three quarters of each. The last quarter is for users who have less than a
 * quarter. So a user who is alone loses little, and one who comes when others have taken all they
 * can get still finds room. Processes with CAP_SYS_RESOURCE are not bound, as with other quotas.
 */
#include <linux/cred.h>
#include <linux/slab.h>
#include <linux/uidgid.h>

#include "kvg.h"

/* The calling process's; NULL if there is no memory. Give it back with kvg_user_put(). */
struct kvg_user *kvg_user_get(struct kvg_device *dev)
{
	struct kvg_user *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	struct kvg_user *user;

	if (!fresh)
		return NULL;
	spin_lock(&dev->files_lock);
	list_for_each_entry(user, &dev->users, link) {
		if (uid_eq(user->uid, current_uid())) {
			user->refs++;
			spin_unlock(&dev->files_lock);
			kfree(fresh);
			return user;
		}
	}
	fresh->uid = current_uid();
	fresh->refs = 1;
	list_add(&fresh->link, &dev->users);
	spin_unlock(&dev->files_lock);
	return fresh;
}

/* Another reference, by who has one. */
void kvg_user_hold(struct kvg_device *dev, struct kvg_user *user)
{
	spin_lock(&dev->files_lock);
	user->refs++;
	spin_unlock(&dev->files_lock);
}

void kvg_user_put(struct kvg_device *dev, struct kvg_user *user)
{
	bool last;

	spin_lock(&dev->files_lock);
	last = !--user->refs;
	if (last)
		list_del(&user->link);
	spin_unlock(&dev->files_lock);
	if (!last)
		return;
	WARN_ON_ONCE(user->slots_used || user->payload_slots_used || user->pinned_pages ||
		     user->device_files || user->window_bytes);
	kfree(user);
}

/*
 * Whether there are `more` for a user who has `own`: all users together have `used` of `limit`. The
 * caller holds the lock of the numbers.
 */
bool kvg_share_left(u64 limit, u64 used, u64 own, u64 more, bool unbound)
{
	u64 quarter = limit / 4;

	if (used > limit || more > limit - used)
		return false;
	return unbound || used + more <= limit - quarter || own + more <= quarter;
}

/* Before a file is opened on the device: one of its files for this user, or -EMFILE. */
int kvg_user_take_file(struct kvg_file *file)
{
	struct kvg_device *dev = file->dev;
	struct kvg_user *user = file->user;
	int ret = -EMFILE;

	spin_lock(&dev->files_lock);
	if (kvg_share_left(dev->limits.files, dev->device_files, user->device_files, 1,
			   file->unbound)) {
		dev->device_files++;
		user->device_files++;
		ret = 0;
	}
	spin_unlock(&dev->files_lock);
	return ret;
}

void kvg_user_return_file(struct kvg_file *file)
{
	spin_lock(&file->dev->files_lock);
	file->dev->device_files--;
	file->user->device_files--;
	spin_unlock(&file->dev->files_lock);
}
