/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What bpf/drm_ioctl.bpf.c and user space share: the layout of every pinned map of this stem.
 * kubenpu/kernel/layout.py holds the same structs; they are compared with the object's BTF before use.
 * A change here is a new KNPU_ABI: pins live below /sys/fs/bpf/kubenpu/<abi>/.
 */
#ifndef KNPU_DRM_IOCTL_H
#define KNPU_DRM_IOCTL_H

#include <linux/types.h>

#define KNPU_ABI 1

#define KNPU_KINDS 7		/* submit alloc free map wait context other, as in kubenpu/model/kinds.py */
#define KNPU_KIND_WAIT 4
#define KNPU_DEVICE_SLOTS 128	/* the last one belongs to the loader's self-test */
#define KNPU_DRM_MAJOR 226
#define KNPU_DRM_MINORS 1024	/* minors at or above are declared lost as device_unknown */
#define KNPU_ACCEL_MAJOR 261
#define KNPU_ACCEL_MINORS 256
#define KNPU_RULES (KNPU_DRM_MINORS + KNPU_ACCEL_MINORS)
#define KNPU_PATH_MAX 2048
#define KNPU_PATH_LEVELS 24	/* levels below the root that are recorded */
#define KNPU_NAME_MAX 256	/* NAME_MAX and the NUL */
#define KNPU_ARGUMENTS 256
#define KNPU_VALUES 64
#define KNPU_NO_RESULT 255
#define KNPU_KIND_BITS 3
#define KNPU_ELSEWHERE KNPU_KINDS	/* in place of a kind: the other hook counts such calls */
#define KNPU_WORK_MAX 65535	/* work of one call; a process that claims more is not believed */

/* Calls of a known device that no cell could take; index of knpu_totals.lost. */
enum knpu_device_loss {
	KNPU_LOST_SLOTS_FULL,	/* every counter cell is in use */
	KNPU_LOST_NO_STORAGE,	/* the kernel gave no memory for the cgroup's entry */
	KNPU_DEVICE_LOSSES,
};

/* Losses that belong to no known device; index of knpu_losses.count. */
enum knpu_loss {
	KNPU_LOST_DEVICE_UNKNOWN,	/* a DRM or accel minor without a rule yet */
	KNPU_LOST_WAIT_UNTIMED,		/* a wait whose begin was not seen: counted, its time is not */
	KNPU_LOST_EXIT_MISSED,		/* kprobe only: a call whose return was not seen: its error is unknown */
	KNPU_LOST_IDENTITY,		/* cgroups for whose names there was no room, and no later call that found some */
	KNPU_LOST_NO_BODY,		/* the hook fired while no program was installed behind it */
	KNPU_LOST_ARGUMENT_UNREAD,	/* an argument could not be read: counted as what the number alone says */
	KNPU_LOSSES,
};

/* rules[minor], rules[KNPU_DRM_MINORS + accel minor]. Written by user space only.
 * A byte of kind[] is the kind, and above its KNPU_KIND_BITS which argument has more to say: 1 for the one at `first`. */
struct knpu_rule {
	__u32 slot1;		/* device slot + 1; 0: no rule */
	__u32 first;		/* place in arguments[] */
	__u8 kind[256];		/* by ioctl number */
};

/* What a number inside the argument of a call says. */
enum knpu_meaning {
	KNPU_SAYS_KIND,		/* the kind, by its result */
	KNPU_SAYS_SLOT,		/* the device slot, by its result */
	KNPU_SAYS_WORK,		/* how much work the call hands over */
	KNPU_SAYS_CALL,		/* the number of another call, whose size and argument stand beside it */
};

/* arguments[]: `width` bytes at `offset` of an argument of at least `size` bytes. Written by user space only. */
struct knpu_argument {
	__u16 says;
	__u16 width;
	__u16 size;
	__u16 offset;
	__u16 length;		/* KNPU_SAYS_CALL: where the 4 bytes of the size are, */
	__u16 pointer;		/* and the 8 of the address */
	__u32 pad;
	__u64 mask;
	__u64 value[KNPU_VALUES];	/* under the mask, ascending; the last one is repeated to the end */
	__u8 result[KNPU_VALUES];	/* KNPU_NO_RESULT: none */
};

/* cells[0 .. KNPU_DEVICE_SLOTS-1]: departed totals per device slot, written by user space only.
 * cells[KNPU_DEVICE_SLOTS ..]: one cgroup on one device. Claimed by the kernel (0 -> cgroup id in `owner`), freed by
 * user space (owner = 0, written last). First line: what a counted call touches. */
struct knpu_cell {
	__u64 owner;		/* cgroup id, 0: free */
	__u64 calls[KNPU_KINDS];
	__u64 errors[KNPU_KINDS];
	__u64 wait_ns;
	__u64 first_ns;		/* CLOCK_BOOTTIME */
	__u32 slot1;		/* device slot + 1; 0: the claim is not finished */
	__u32 pad;
	__u64 work;		/* handed over by calls that say how much, and returned well */
	__u64 reserved[5];
};

/* totals[device slot * CPUs + CPU]. Counted before anything else, hence independent of the cells. Whole cache lines,
 * and memory-mapped rather than a per-CPU map: a system call on a map keeps kprobe programs from running on its CPU, also
 * while it is preempted. */
struct knpu_totals {
	__u64 calls[KNPU_KINDS];
	__u64 errors[KNPU_KINDS];
	__u64 wait_ns;
	__u64 lost[KNPU_DEVICE_LOSSES];
	__u64 work;
	__u64 reserved[6];
};

/* losses[CPU] */
struct knpu_losses {
	__u64 count[KNPU_LOSSES];
	__u64 reserved[2];
};

#define KNPU_NAMELESS (~0ULL)

/* Which cell counts for a cgroup on each device; local storage of the cgroup, or a hash by cgroup id. */
struct knpu_cgroup_cells {
	__u64 cgroup_id;	/* 0 until its names are in cgroups[], KNPU_NAMELESS while there is no room for them */
	__u32 cell[KNPU_DEVICE_SLOTS];
};

/* cgroups[cgroup id]: the names of a cgroup, taken at its first counted call. */
struct knpu_cgroup {
	__u64 first_ns;
	__u32 ready;		/* 1 when everything else is written */
	__u32 truncated;	/* the tree is deeper or longer than recorded */
	__u32 path_len;
	__u32 level;
	__u8 path[KNPU_PATH_MAX];
};

/* in_flight: local storage of a task inside the hooked function: what only the begin of the call tells. */
struct knpu_in_flight {
	__u64 start_or_work;	/* of a wait when it began, of others their work */
	__u32 cell;
	__u16 slot1;
	__u8 kind;
	__u8 pending;
};

/* alloc[0]: where the search for a free cell begins, and whether the last one found none. */
struct knpu_alloc {
	__u64 hint;
	__u32 full;		/* set by the kernel, cleared by user space */
	__u32 pad;
};

/* slots[device slot]: which device a slot stands for. Written and read by user space, but for node.bpf.h's mark(). */
struct knpu_slot {
	__u64 since_ns;
	__u32 hooks;		/* those that count for it, or a rule was written for, since boot: a bit each */
	__u32 pad;
	__u8 address[112];
};

/* journal[0]: the cell merge in progress, so that a killed user space can finish it. See kernel/store.py. */
struct knpu_journal {
	__u64 valid;
	__u64 source_owner;	/* the source is freed only while it is still this cgroup's */
	__u32 source;
	__u32 target;
	struct knpu_cell result;
};

_Static_assert(sizeof(struct knpu_rule) == 264, "rule");
_Static_assert(sizeof(struct knpu_argument) == 600, "argument");
_Static_assert(sizeof(struct knpu_cell) == 192, "cell");
_Static_assert(sizeof(struct knpu_totals) == 192, "totals");
_Static_assert(sizeof(struct knpu_losses) == 64, "losses");
_Static_assert(sizeof(struct knpu_alloc) == 16, "alloc");
_Static_assert(sizeof(struct knpu_cgroup_cells) == 520, "cgroup_cells");
_Static_assert(sizeof(struct knpu_cgroup) == 2072, "cgroup");
_Static_assert(sizeof(struct knpu_in_flight) == 16, "in_flight");
_Static_assert(sizeof(struct knpu_slot) == 128, "slot");
_Static_assert(sizeof(struct knpu_journal) == 216, "journal");

#endif
