/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counting one call: the body that every hook shares, whatever it is attached to.
 * Order matters for the conservation check: the device total first, then the cell or the loss, so that at any moment
 * total >= cells + lost, and the difference is the number of calls in between right now.
 */
#ifndef KNPU_COUNT_BPF_H
#define KNPU_COUNT_BPF_H

#include "argument.bpf.h"
#include "cgroup.bpf.h"

/* One ioctl, as far as it is known when the body runs. */
struct call {
	__u32 rdev;	/* kernel's dev_t: major << 20 | minor */
	__u32 cmd;
	__u64 arg;
	long ret;
};

/* The rule for a device node, NULL when nothing is to be counted. Unknown minors are declared lost. */
static __always_inline struct knpu_rule *rule_of(__u32 rdev, __u32 cmd)
{
	__u32 major = rdev >> 20, index = rdev & 0xfffff;
	struct knpu_rule *rule;

	if (((cmd >> 8) & 0xff) != 'd')	/* the DRM core refuses every other type byte before the driver sees it */
		return NULL;
	if (major == KNPU_DRM_MAJOR && index < KNPU_DRM_MINORS)
		;
	else if (major == KNPU_ACCEL_MAJOR && index < KNPU_ACCEL_MINORS)
		index += KNPU_DRM_MINORS;
	else
		index = KNPU_RULES;
	rule = bpf_map_lookup_elem(&rules, &index);
	return rule && rule->slot1 ? rule : NULL;
}

/* Counts a call of `kind` on device `slot` in its total and in the cell of the running task's cgroup.
 * Returns the cell, NULL when the call was declared lost. */
static __always_inline struct knpu_cell *count_call(__u32 slot, __u32 kind, __u32 *index)
{
	struct knpu_totals *total = total_of(slot);
	struct knpu_cell *cell;
	__u32 why = 0;

	if (!total || kind >= KNPU_KINDS)
		return NULL;
	__sync_fetch_and_add(&total->calls[kind], 1);
	cell = cell_of(slot, index, &why);
	if (cell)
		__sync_fetch_and_add(&cell->calls[kind], 1);
	else if (why < KNPU_DEVICE_LOSSES)
		__sync_fetch_and_add(&total->lost[why], 1);
	return cell;
}

/* The second half: what the return value and the clock say. `cell` NULL: the call itself was declared lost. */
static __always_inline void count_return(__u32 slot, __u32 kind, struct knpu_cell *cell, long ret, __u64 wait_ns,
					 __u64 work)
{
	struct knpu_totals *total;

	if (ret >= 0 && !wait_ns && !work)
		return;
	total = total_of(slot);
	if (!total || kind >= KNPU_KINDS)
		return;
	if (ret < 0) {
		__sync_fetch_and_add(&total->errors[kind], 1);
		if (cell)
			__sync_fetch_and_add(&cell->errors[kind], 1);
	} else if (work) {
		__sync_fetch_and_add(&total->work, work);
		if (cell)
			__sync_fetch_and_add(&cell->work, work);
	}
	if (wait_ns) {
		__sync_fetch_and_add(&total->wait_ns, wait_ns);
		if (cell)
			__sync_fetch_and_add(&cell->wait_ns, wait_ns);
	}
}

/* What the begin of a call leaves for its end. */
static __always_inline void note(struct knpu_in_flight *f, const struct meaning *m, __u32 cell)
{
	f->cell = cell;
	f->slot1 = m->slot + 1;
	f->kind = m->kind;
	f->pending = 1;
	f->start_or_work = m->kind == KNPU_KIND_WAIT ? bpf_ktime_get_ns() : m->work;
}

/* What the running thread left open when it entered a driver; NULL when there is nothing, or no memory to `make` it. */
static __always_inline struct knpu_in_flight *in_flight_here(int make)
{
	struct knpu_in_flight none = {}, *here;
	__u64 thread;

	if (knpu_kernel_btf)
		return bpf_task_storage_get(&in_flight, bpf_get_current_task_btf(), NULL,
					    make ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	thread = bpf_get_current_pid_tgid();
	here = bpf_map_lookup_elem(&in_flight_by_thread, &thread);
	if (here || !make)
		return here;
	bpf_map_update_elem(&in_flight_by_thread, &thread, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&in_flight_by_thread, &thread);
}

/* Nothing is open any more. Storage goes with its task, an entry of the hash has to be taken out. */
static __always_inline void nothing_in_flight(void)
{
	__u64 thread = bpf_get_current_pid_tgid();

	if (!knpu_kernel_btf)
		bpf_map_delete_elem(&in_flight_by_thread, &thread);
}

/* Time since the begin that was noted, which is taken back; 0 and a declared loss when there is none. */
static __always_inline __u64 wait_time(struct knpu_in_flight *f)
{
	__u64 start = f ? f->start_or_work : 0;

	if (!start) {
		lose(KNPU_LOST_WAIT_UNTIMED);
		return 0;
	}
	f->start_or_work = 0;
	return bpf_ktime_get_ns() - start;
}

/* fentry: what the end of a call cannot tell: when a wait began, and what an argument said before the driver had it. */
static __always_inline void note_begin(const struct call *c)
{
	struct knpu_rule *rule = rule_of(c->rdev, c->cmd);
	struct knpu_in_flight *f;
	struct meaning m = {};

	if (!rule)
		return;
	m.kind = rule->kind[c->cmd & 0xff];
	if ((m.kind != KNPU_KIND_WAIT && !has_argument(m.kind)) || m.kind == KNPU_ELSEWHERE)
		return;
	m.slot = rule->slot1 - 1;
	if (has_argument(m.kind))
		consult(&m, rule->kind, rule->first, c->cmd, c->arg);
	f = in_flight_here(1);
	if (f)
		note(f, &m, 0);
}

/* What note_begin() found; where nothing is noted, the number alone decides, and that is declared. */
static __noinline int recall(struct meaning *m, struct knpu_in_flight *f)
{
	if (!f) {
		m->kind = plain_kind(m->kind);
		lose(KNPU_LOST_ARGUMENT_UNREAD);
		return 0;
	}
	m->slot = f->slot1 - 1;
	m->kind = f->kind;
	m->work = m->kind == KNPU_KIND_WAIT ? 0 : f->start_or_work;
	return 0;
}

/* fexit: the whole call at once. */
static __always_inline void count_whole(const struct call *c)
{
	struct knpu_rule *rule = rule_of(c->rdev, c->cmd);
	struct knpu_in_flight *f = NULL;
	struct meaning m = {};
	struct knpu_cell *cell;
	__u32 slot, kind, index = 0;
	__u64 wait_ns = 0;

	if (!rule) {
		if (((c->cmd >> 8) & 0xff) == 'd')
			lose(KNPU_LOST_DEVICE_UNKNOWN);
		return;
	}
	m.slot = rule->slot1 - 1;
	m.kind = rule->kind[c->cmd & 0xff];
	if (m.kind == KNPU_KIND_WAIT || has_argument(m.kind))
		f = in_flight_here(0);
	if (f && !f->pending)
		f = NULL;	/* left by an earlier call */
	if (has_argument(m.kind)) {
		if (m.kind == KNPU_ELSEWHERE)
			return;
		recall(&m, f);
	}
	slot = m.slot;
	kind = m.kind;
	cell = count_call(slot, kind, &index);
	if (kind == KNPU_KIND_WAIT)
		wait_ns = wait_time(f);
	if (f) {
		f->pending = 0;
		nothing_in_flight();
	}
	count_return(slot, kind, cell, c->ret, wait_ns, m.work);
}

/* kprobe: the call is counted when it begins, because a return can be missed. */
static __always_inline void count_begin(const struct call *c)
{
	struct knpu_rule *rule = rule_of(c->rdev, c->cmd);
	struct knpu_in_flight *f;
	struct meaning m = {};
	__u32 index = 0;

	if (!rule) {
		if (((c->cmd >> 8) & 0xff) == 'd')
			lose(KNPU_LOST_DEVICE_UNKNOWN);
		return;
	}
	m.slot = rule->slot1 - 1;
	m.kind = rule->kind[c->cmd & 0xff];
	if (has_argument(m.kind)) {
		if (m.kind == KNPU_ELSEWHERE)
			return;
		consult(&m, rule->kind, rule->first, c->cmd, c->arg);
	}
	if (!count_call(m.slot, m.kind, &index))
		index = 0;
	f = in_flight_here(1);
	if (!f || f->pending)
		lose(KNPU_LOST_EXIT_MISSED);
	if (f)
		note(f, &m, index);
}

/* kretprobe: what count_begin() left open. */
static __always_inline void count_end(long ret)
{
	struct knpu_in_flight *f = in_flight_here(0);
	struct knpu_cell *cell = NULL;
	__u64 wait_ns = 0, work = 0;
	__u32 index;

	if (!f || !f->pending)
		return;
	f->pending = 0;
	index = f->cell;
	if (index)
		cell = bpf_map_lookup_elem(&cells, &index);
	if (f->kind == KNPU_KIND_WAIT)
		wait_ns = wait_time(f);
	else
		work = f->start_or_work;
	count_return(f->slot1 - 1, f->kind, cell, ret, wait_ns, work);
	nothing_in_flight();
}

#endif
