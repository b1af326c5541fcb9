// SPDX-License-Identifier: GPL-2.0-only
/*
 * clients: which tasks hold which DRM or accel device open at this moment, and where their fdinfo is.
 *
 * Hook -> question
 *   iter task_file             every file descriptor of every task, asked for by reading the pinned iterator
 * Cost: nothing until somebody reads it; then 0.2 us for each open file of the node. No event, no map, no call of any
 * program passes here.
 * Fails towards "not listed": a task that the kernel steps over is missing in one reading and there in the next.
 * Blind: files that nobody holds by a descriptor: those in flight over a socket, mapped and closed, or registered with
 * io_uring. Their client ends for the reader and comes back.
 *
 * Which open file it is, is told by its address: duplicates share it, on every kernel and with every driver, while
 * drm_file.client_id is not in 6.1 and needs the BTF of a module that may not be loaded yet (0 then). The address is a
 * number to compare and nothing else, and leaves the kernel only for who may open the pin.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "clients.h"
#include "core_types.h"
#include "drm_ioctl.h"

/* knobs, set by the loader before load: the tests look for other devices */
const volatile __u32 knpu_first_major = KNPU_DRM_MAJOR;
const volatile __u32 knpu_second_major = KNPU_ACCEL_MAJOR;

struct drm_file {
	__u64 client_id;
} __attribute__((preserve_access_index));

/* Of an accelerator's open file; nodes of these majors are DRM's, with its struct behind them. */
static __always_inline __u64 client_of(struct file *file)
{
	struct drm_file *opened = file->private_data;
	__u64 id = 0;

	if (bpf_core_field_exists(opened->client_id))
		bpf_core_read(&id, sizeof(id), &opened->client_id);
	return id;
}

/* A function of its own, so that the record's layout is in the BTF of the object. */
static __noinline int write_holder(struct seq_file *out, const struct knpu_holder *holder)
{
	return bpf_seq_write(out, holder, sizeof(*holder));
}

SEC("iter/task_file")
int list_holders(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct knpu_holder holder = {};
	struct inode *inode;
	__u32 major;

	if (!task || !file)
		return 0;
	inode = file->f_inode;
	if ((inode->i_mode & S_IFMT) != S_IFCHR)
		return 0;
	major = inode->i_rdev >> 20;
	if (major != knpu_first_major && major != knpu_second_major)
		return 0;
	holder.file = (__u64)file;
	holder.cgroup_id = task->cgroups->dfl_cgrp->kn->id;
	holder.start_ns = task->start_boottime;
	holder.ino = inode->i_ino;
	holder.client_id = client_of(file);
	holder.rdev = inode->i_rdev;
	holder.tgid = task->tgid;
	holder.pid = task->pid;
	holder.fd = ctx->fd;
	write_holder(ctx->meta->seq, &holder);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
