/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From the device number of a character device and a command to a device slot and a kind: two array look-ups for a
 * device that is no accelerator, none for any other file.
 */
#ifndef KNPU_NODE_BPF_H
#define KNPU_NODE_BPF_H

#include "count.bpf.h"
#include "file_ioctl.h"

/* majors, nodes, tables: written by user space at discovery, read here. Full: user space refuses the node. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_MAJORS);
	__type(key, __u32);
	__type(value, struct knpu_major);
} majors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_BLOCKS * KNPU_BLOCK_MINORS);
	__type(key, __u32);
	__type(value, struct knpu_node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_TABLES);
	__type(key, __u32);
	__type(value, struct knpu_table);
} tables SEC(".maps");

/* Commands that the VFS (do_vfs_ioctl) answers for device nodes too: the driver never sees them. Not those that it hands
 * on where the file system has no answer of its own: FIONREAD and the get and set of file attributes. */
static __always_inline int is_of_vfs(__u32 cmd)
{
	switch (cmd) {
	case 0x2:		/* FIGETBSZ */
	case 0x5421:		/* FIONBIO */
	case 0x5450:		/* FIONCLEX */
	case 0x5451:		/* FIOCLEX */
	case 0x5452:		/* FIOASYNC */
	case 0x5460:		/* FIOQSIZE */
	case 0xc0045877:	/* FIFREEZE */
	case 0xc0045878:	/* FITHAW */
	case 0xc020660b:	/* FS_IOC_FIEMAP */
	case 0x40049409:	/* FICLONE */
	case 0x4020940d:	/* FICLONERANGE */
	case 0xc0189436:	/* FIDEDUPERANGE */
	case 0x80111500:	/* FS_IOC_GETFSUUID, since 6.9 */
	case 0x80811501:	/* FS_IOC_GETFSSYSFSPATH, since 6.9 */
		return 1;
	}
	return 0;
}

struct search {
	__u32 cmd;
	__u32 table1;
	__u32 found;
	__u32 kind;
};

static long try_table(__u32 i, struct search *s)
{
	__u32 index = s->table1 - 1;
	struct knpu_table *table = bpf_map_lookup_elem(&tables, &index);	/* NULL at the end of the chain */

	if (!table)
		return 1;
	if (((s->cmd >> 8) & table->mask) == table->value) {
		s->kind = table->kind[s->cmd & 0xff];
		s->found = index;
		return 1;
	}
	s->table1 = table->next1;
	return 0;
}

/* Slow only in comparison: for calls of accelerators. */
static __always_inline void look_up(struct meaning *m, __u32 table1, __u32 cmd, __u64 arg)
{
	struct search s = { .cmd = cmd, .table1 = table1, .kind = KNPU_KINDS - 1 };
	struct knpu_table *table;

	if (try_table(0, &s) == 0)
		bpf_loop(KNPU_CHAIN - 1, try_table, &s, 0);
	m->kind = s.kind;
	if (!has_argument(s.kind) || s.kind == KNPU_ELSEWHERE)
		return;
	table = bpf_map_lookup_elem(&tables, &s.found);
	if (table)
		consult(m, table->kind, table->first, cmd, arg);
}

/* A call counts for a device that this hook may have had no rule for: how it ends is not known, so of this device's calls
 * it no longer is. Set at the first such call, as most GPUs that could be called through a common node never are. */
static __always_inline void mark(__u32 slot)
{
	struct knpu_slot *s = bpf_map_lookup_elem(&slots, &slot);

	if (s && !(s->hooks & KNPU_HOOK))
		__sync_fetch_and_or(&s->hooks, KNPU_HOOK);
}

/* The whole program: one call of a character device, before its driver sees it. */
static __always_inline void count_node(__u32 rdev, __u32 cmd, __u64 arg)
{
	__u32 number = rdev >> 20, minor = rdev & 0xfffff, index = 0;
	struct knpu_major *major = bpf_map_lookup_elem(&majors, &number);
	struct knpu_node *node = NULL;
	struct meaning m = {};

	if (!major || !major->block1 || is_of_vfs(cmd))
		return;
	if (minor < KNPU_BLOCK_MINORS) {
		index = (major->block1 - 1) * KNPU_BLOCK_MINORS + minor;
		node = bpf_map_lookup_elem(&nodes, &index);
	}
	if (!node || !node->slot1) {
		if (major->whole)
			lose(KNPU_LOST_DEVICE_UNKNOWN);
		return;
	}
	m.slot = node->slot1 - 1;
	look_up(&m, node->table1, cmd, arg);
	if (m.kind == KNPU_ELSEWHERE)
		return;
	if (m.slot >= KNPU_DEVICE_SLOTS) {
		lose(KNPU_LOST_DEVICE_UNKNOWN);
		return;
	}
	if (m.slot != node->slot1 - 1)
		mark(m.slot);
	count_call(m.slot, m.kind, &index);	/* no work: whether the driver took it is not known */
}

#endif
