/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What bpf/clients.bpf.c writes, one record after the other, for whoever reads the pinned iterator.
 * kubenpu/kernel/layout.py holds the same struct; the two are compared by the object's BTF before it is pinned.
 */
#ifndef KNPU_CLIENTS_H
#define KNPU_CLIENTS_H

#include <linux/types.h>

/* One file descriptor of one task that is open on an accelerator's device node. */
struct knpu_holder {
	__u64 file;		/* which open file: the same for every duplicate, in whatever process; never dereferenced */
	__u64 cgroup_id;	/* where the task is now */
	__u64 start_ns;		/* of the task, CLOCK_BOOTTIME: which of several holders is the oldest */
	__u64 ino;		/* of the device node: tells a descriptor that was reused before it was read */
	__u64 client_id;	/* what DRM calls the open file, 0 where that is not known */
	__u32 rdev;		/* device number, major << 20 | minor */
	__u32 tgid;		/* /proc/TGID/task/PID/fdinfo/FD, in the numbers of the first namespace */
	__u32 pid;
	__u32 fd;
};

_Static_assert(sizeof(struct knpu_holder) == 56, "holder");

#endif
