/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From the running task to the cell of its cgroup on one device, and the names of a cgroup seen for the first time.
 * The fast path is one local-storage look-up (kernel 6.2 and later) or one hash look-up (6.1).
 */
#ifndef KNPU_CGROUP_BPF_H
#define KNPU_CGROUP_BPF_H

#include <bpf/bpf_core_read.h>
#include "core_types.h"
#include "maps.bpf.h"

#define KNPU_E2BIG 7
#define KNPU_EEXIST 17

/* The cgroup of the default (version 2) hierarchy. */
static __always_inline struct cgroup *current_cgroup(void)
{
	struct task_struct *task;

	if (knpu_kernel_btf) {
		task = bpf_get_current_task_btf();
		return task->cgroups->dfl_cgrp;
	}
	task = (struct task_struct *)bpf_get_current_task();
	return BPF_CORE_READ(task, cgroups, dfl_cgrp);
}

static __always_inline __u64 id_of(struct cgroup *cgrp)
{
	return knpu_kernel_btf ? cgrp->kn->id : BPF_CORE_READ(cgrp, kn, id);
}

/* Writes the path from the root down, so that a path cut short keeps its pod segment. */
static __always_inline void write_path(struct knpu_cgroup *rec, struct cgroup *cgrp)
{
	__u32 level = knpu_kernel_btf ? cgrp->level : BPF_CORE_READ(cgrp, level), off = 0, i;

	for (i = 1; i <= KNPU_PATH_LEVELS; i++) {
		struct cgroup *ancestor = NULL;
		const char *name = NULL;
		long n;

		if (i > level)
			break;
		if (off > KNPU_PATH_MAX - KNPU_NAME_MAX - 1) {
			rec->truncated = 1;
			break;
		}
		bpf_core_read(&ancestor, sizeof(ancestor), &cgrp->ancestors[i]);
		BPF_CORE_READ_INTO(&name, ancestor, kn, name);
		rec->path[off] = '/';
		n = bpf_probe_read_kernel_str(&rec->path[off + 1], KNPU_NAME_MAX, name);
		if (n <= 0 || n > KNPU_NAME_MAX) {
			rec->truncated = 1;
			break;
		}
		off += n;	/* n counts the NUL, which the '/' makes up for */
	}
	if (level > KNPU_PATH_LEVELS)
		rec->truncated = 1;
	rec->path_len = off;
	rec->level = level;
}

/*
 * A new entry of a hash. The kernel takes the memory from a few pieces that each CPU keeps, and gets more of them by an
 * interrupt after the last one was taken: when that came too late or found none, the next try may succeed.
 */
static __always_inline long insert(void *hash, __u64 id, void *value)
{
	long err = -1;
	int i;

	for (i = 0; i < 3 && err && err != -KNPU_EEXIST && err != -KNPU_E2BIG; i++)
		err = bpf_map_update_elem(hash, &id, value, BPF_NOEXIST);
	return err;
}

/* Once per cgroup: record its names and ring the bell. 0: there is no room for them now. */
static __noinline int record_names(__u64 id)
{
	struct cgroup *cgrp = current_cgroup();
	struct knpu_cgroup *rec;
	__u32 zero = 0;
	__u64 *bell;
	long err;

	rec = bpf_map_lookup_elem(&blank, &zero);
	if (!rec || !cgrp)
		return 0;
	err = insert(&cgroups, id, rec);
	if (err == -KNPU_EEXIST)	/* another thread of the cgroup was first */
		return 1;
	rec = err ? NULL : bpf_map_lookup_elem(&cgroups, &id);
	if (!rec)
		return 0;
	rec->first_ns = bpf_ktime_get_boot_ns();
	if (knpu_capture_names)
		write_path(rec, cgrp);
	else
		rec->truncated = 1;
	__sync_lock_test_and_set(&rec->ready, 1);	/* after all that was written before, on arm64 too */

	bell = bpf_ringbuf_reserve(&announce, sizeof(*bell), 0);
	if (bell) {
		*bell = id;
		bpf_ringbuf_submit(bell, 0);
	}
	return 1;
}

/* The first call of a cgroup; further ones only when there was no room for its names. Declared lost once until there is:
 * the kernel had no memory at that moment, as a rule. */
static __noinline int introduce(struct knpu_cgroup_cells *own, __u64 id)
{
	if (!own)
		return 0;
	if (record_names(id)) {
		if (__sync_lock_test_and_set(&own->cgroup_id, id) == KNPU_NAMELESS)
			find_again(KNPU_LOST_IDENTITY);
	} else if (!__sync_val_compare_and_swap(&own->cgroup_id, 0, KNPU_NAMELESS)) {
		lose(KNPU_LOST_IDENTITY);
	}
	return 0;
}

struct claim {
	__u64 owner;
	__u32 start;
	__u32 found;
};

static long try_claim(__u32 i, struct claim *c)
{
	__u32 index = KNPU_DEVICE_SLOTS + ((c->start + i) & knpu_cells_mask);
	struct knpu_cell *cell = bpf_map_lookup_elem(&cells, &index);

	if (!cell || cell->owner || __sync_val_compare_and_swap(&cell->owner, 0, c->owner))
		return 0;
	c->found = index;
	return 1;
}

/* Slow path: claims a free cell for (cgroup, device). Returns its index, 0 when all are in use. */
static __noinline __u32 claim_cell(__u64 id, __u32 slot)
{
	struct claim c = { .owner = id };
	struct knpu_alloc *a;
	struct knpu_cell *cell;
	__u32 zero = 0;

	a = bpf_map_lookup_elem(&alloc, &zero);
	if (!a || a->full)
		return 0;
	c.start = __sync_fetch_and_add(&a->hint, 1);
	bpf_loop(knpu_cells_mask + 1, try_claim, &c, 0);
	cell = c.found ? bpf_map_lookup_elem(&cells, &c.found) : NULL;
	if (!cell) {
		a->full = 1;
		return 0;
	}
	cell->first_ns = bpf_ktime_get_boot_ns();
	__sync_lock_test_and_set(&cell->slot1, slot + 1);
	return c.found;
}

static __always_inline struct knpu_cgroup_cells *cells_by_id(__u64 id)
{
	struct knpu_cgroup_cells *own = bpf_map_lookup_elem(&cgroup_cells_by_id, &id);
	__u32 zero = 0;
	void *none;

	if (own)
		return own;
	none = bpf_map_lookup_elem(&blank, &zero);
	if (!none)
		return NULL;
	insert(&cgroup_cells_by_id, id, none);
	return bpf_map_lookup_elem(&cgroup_cells_by_id, &id);
}

/* Slow path of cell_of(): the cgroup has no names yet, or cell `stale` is not its own, as this device is new to it. The
 * loser of a race gives its cell back. */
static __noinline __u32 first_use(struct knpu_cgroup_cells *own, __u64 id, __u32 slot, __u32 stale)
{
	struct knpu_cell *cell;
	__u32 mine, now;

	if (!own)
		return 0;
	slot = bounded_slot(slot);
	if (own->cgroup_id != id)
		introduce(own, id);
	cell = bpf_map_lookup_elem(&cells, &stale);
	if (cell && cell->owner == id)
		return stale;
	mine = claim_cell(id, slot);
	if (!mine)
		return 0;
	now = __sync_val_compare_and_swap(&own->cell[slot], stale, mine);
	if (now == stale)
		return mine;
	cell = bpf_map_lookup_elem(&cells, &mine);
	if (cell) {
		cell->slot1 = 0;
		cell->first_ns = 0;
		__sync_lock_test_and_set(&cell->owner, 0);
	}
	return now;
}

/* The first threads of a cgroup may race to create its storage: the kernel fails all but one of them, so those look
 * again. */
static __noinline struct knpu_cgroup_cells *storage_again(void)
{
	struct knpu_cgroup_cells *own = NULL;
	int i;

	for (i = 0; i < 3 && !own; i++)
		own = bpf_cgrp_storage_get(&cgroup_cells, current_cgroup(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	return own;
}

static __always_inline struct knpu_cgroup_cells *storage_of(struct cgroup *cgrp)
{
	struct knpu_cgroup_cells *own;

	own = bpf_cgrp_storage_get(&cgroup_cells, cgrp, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	return own ? own : storage_again();
}

/* The cell that counts for the running task on device `slot`; NULL and *why when there is none. */
static __always_inline struct knpu_cell *cell_of(__u32 slot, __u32 *index, __u32 *why)
{
	struct cgroup *cgrp = current_cgroup();
	struct knpu_cgroup_cells *own;
	struct knpu_cell *cell;
	__u64 id = id_of(cgrp);

	*why = KNPU_LOST_NO_STORAGE;
	if (knpu_cgroup_storage)
		own = storage_of(cgrp);
	else
		own = cells_by_id(id);
	if (!own)
		return NULL;
	*index = own->cell[bounded_slot(slot)];
	cell = bpf_map_lookup_elem(&cells, index);
	if (cell && cell->owner == id && own->cgroup_id == id)
		return cell;
	*why = KNPU_LOST_SLOTS_FULL;
	*index = first_use(own, id, slot, *index);
	return *index ? bpf_map_lookup_elem(&cells, index) : NULL;
}

#endif
