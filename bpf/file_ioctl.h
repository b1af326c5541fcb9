/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What bpf/file_ioctl.bpf.c and user space share beside drm_ioctl.h: which character devices are accelerators, and what
 * their commands are for. Nodes of DRM are here only where some of their calls do not pass drm_ioctl; the others are
 * KNPU_ELSEWHERE. kubenpu/kernel/layout.py holds the same structs.
 */
#ifndef KNPU_FILE_IOCTL_H
#define KNPU_FILE_IOCTL_H

#include <linux/types.h>

#define KNPU_MAJORS 4096
#define KNPU_BLOCKS 32		/* majors with accelerators at a time */
#define KNPU_BLOCK_MINORS 1024	/* minors at or above are refused by user space */
#define KNPU_TABLES 256
#define KNPU_CHAIN 16		/* tables of one node */
#define KNPU_HOOK 2		/* the bit of this hook in knpu_slot.hooks */

/* majors[major]. Written by user space only, like all of this file; this and the next in one piece. */
struct knpu_major {
	__u32 block1;	/* block of nodes + 1; 0: no accelerator has this major */
	__u32 whole;	/* 1: all its minors are accelerators, and one without a rule is declared lost */
};

/* nodes[block * KNPU_BLOCK_MINORS + minor] */
struct knpu_node {
	__u32 slot1;	/* device slot + 1; 0: not counted; beyond the last slot: lost */
	__u32 table1;	/* its first table + 1; 0: all calls are of kind other */
};

/* tables[]: commands whose upper 24 bits equal `value` under `mask`, by their low byte. Several make a chain. `kind` and
 * `first` as in knpu_rule. */
struct knpu_table {
	__u32 mask;
	__u32 value;
	__u32 next1;	/* the next one + 1, 0: none; a command in no table is of kind other */
	__u32 first;
	__u8 kind[256];
};

_Static_assert(sizeof(struct knpu_major) == 8, "major");
_Static_assert(sizeof(struct knpu_node) == 8, "node");
_Static_assert(sizeof(struct knpu_table) == 272, "table");

#endif
