/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The pinned maps and the ways to lose. Nothing here evicts: what does not fit is counted as lost, by reason.
 * Programs of this kind can be preempted on some kernels, so even per-CPU values are added to atomically.
 */
#ifndef KNPU_MAPS_BPF_H
#define KNPU_MAPS_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "compat.bpf.h"
#include "drm_ioctl.h"

#ifndef BPF_F_MMAPABLE
#define BPF_F_MMAPABLE (1U << 10)
#endif

/* knobs, set by the loader before load */
const volatile __u32 knpu_cells_mask = 0;	/* number of claimable cells - 1, a power of two minus 1 */
const volatile __u32 knpu_cpus = 1;		/* possible CPUs */
const volatile __u32 knpu_cgroup_storage = 1;	/* 0: the kernel has no cgroup local storage, use the hash */
const volatile __u32 knpu_capture_names = 1;	/* 0: lockdown=confidentiality forbids the read helpers */
const volatile __u32 knpu_kernel_btf = 1;	/* 0: the verifier knows no kernel types, read through helpers */

/* rules: written by user space at discovery, read here. Full: cannot be, index is the minor. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_RULES);
	__type(key, __u32);
	__type(value, struct knpu_rule);
} rules SEC(".maps");

/* arguments: written by user space at discovery, read here. Full: user space refuses the rule. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_ARGUMENTS);
	__type(key, __u32);
	__type(value, struct knpu_argument);
} arguments SEC(".maps");

/* cells: claimed and added to here, read, merged and freed by user space. Full: KNPU_LOST_SLOTS_FULL. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_DEVICE_SLOTS);	/* + claimable cells, set by the loader */
	__type(key, __u32);
	__type(value, struct knpu_cell);
} cells SEC(".maps");

/* totals: written here, read by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_DEVICE_SLOTS);	/* times CPUs, set by the loader */
	__type(key, __u32);
	__type(value, struct knpu_totals);
} totals SEC(".maps");

/* losses: written here, read by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);	/* CPUs, set by the loader */
	__type(key, __u32);
	__type(value, struct knpu_losses);
} losses SEC(".maps");

/* cgroup_cells, cgroup_cells_by_id: only one of the two exists. Written here; the hash is pruned by user space,
 * the storage goes with the cgroup. Full or no memory: KNPU_LOST_NO_STORAGE. */
struct {
	__uint(type, KNPU_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct knpu_cgroup_cells);
} cgroup_cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct knpu_cgroup_cells);
} cgroup_cells_by_id SEC(".maps");

/* cgroups: written here once per cgroup, read and deleted by user space. Full or no memory: KNPU_LOST_IDENTITY, until a
 * later call of the cgroup has room. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct knpu_cgroup);
} cgroups SEC(".maps");

/* announce: a bell with the id of each new cgroup. Full: nothing is lost, user space reads `cgroups` anyway. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} announce SEC(".maps");

/* in_flight: written and read here. No memory: KNPU_LOST_WAIT_UNTIMED or KNPU_LOST_EXIT_MISSED. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct knpu_in_flight);
} in_flight SEC(".maps");

/* in_flight_by_thread: the same without kernel BTF, and only then there is one. An entry goes with the end of its call;
 * when that is missed, with the end of the thread's next one. Full: as no memory. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct knpu_in_flight);
} in_flight_by_thread SEC(".maps");

/* alloc: state of the search for free cells. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct knpu_alloc);
} alloc SEC(".maps");

/* slots, journal: user space's own, here so that they are pinned and checked with the rest. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KNPU_DEVICE_SLOTS);
	__type(key, __u32);
	__type(value, struct knpu_slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct knpu_journal);
} journal SEC(".maps");

/* blank: all zero, never written: what a new hash entry starts as (too large for the stack). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct knpu_cgroup);
} blank SEC(".maps");

/* This CPU's part of a device's total. */
static __always_inline struct knpu_totals *total_of(__u32 slot)
{
	__u32 index = slot * knpu_cpus + bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&totals, &index);
}

static __always_inline void add_loss(__u32 reason, __s64 n)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct knpu_losses *l = bpf_map_lookup_elem(&losses, &cpu);

	if (l && reason < KNPU_LOSSES)
		__sync_fetch_and_add(&l->count[reason], n);
}

static __always_inline void lose(__u32 reason)
{
	add_loss(reason, 1);
}

/* Takes a loss back that was made good. The sum over the CPUs is right, whichever one lost it. */
static __always_inline void find_again(__u32 reason)
{
	add_loss(reason, -1);
}

#endif
