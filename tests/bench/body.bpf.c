// SPDX-License-Identifier: GPL-2.0-only
/*
 * What one counted call costs: the product's counting code and its peers, each run N times inside one program run.
 * No hook is involved, so the figure is the code's alone and the same on every machine that can load BPF.
 * Peers: an event per call through a ring buffer, and a per-CPU hash keyed by (cgroup, device, kind).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../bpf/node.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct mm_struct {
	struct file *exe_file;
};
struct task_struct___bench {
	struct mm_struct *mm;
};
#pragma clang attribute pop

struct event {
	__u64 cgroup_id;
	__u64 time_ns;
	__u32 rdev;
	__u32 cmd;
	__s64 ret;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct key {
	__u64 cgroup_id;
	__u32 device;
	__u32 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, __u64[2]);
} table SEC(".maps");

/* missed[0]: events for which the ring had no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} missed SEC(".maps");

static long do_nothing(__u32 i, struct call *c)
{
	__asm__ volatile("" ::"r"(c) : "memory");
	return 0;
}

static long do_count(__u32 i, struct call *c)
{
	note_begin(c);
	count_whole(c);
	return 0;
}

/* What file_ioctl does with a file that is no character device; here it is the program that runs. */
static long do_other(__u32 i, struct call *c)
{
	struct task_struct___bench *task = (void *)bpf_get_current_task_btf();
	struct mm_struct *mm = task->mm;
	struct file *file = mm ? mm->exe_file : NULL;

	if (file && (file->f_inode->i_mode & S_IFMT) == S_IFCHR)
		count_node(file->f_inode->i_rdev, c->cmd, c->arg);
	return 0;
}

static long do_node(__u32 i, struct call *c)
{
	count_node(c->rdev, c->cmd, c->arg);
	return 0;
}

static long do_event(__u32 i, struct call *c)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	__u32 zero = 0;

	if (!e) {
		__u64 *n = bpf_map_lookup_elem(&missed, &zero);

		if (n)
			__sync_fetch_and_add(n, 1);
		return 0;
	}
	e->cgroup_id = bpf_get_current_cgroup_id();
	e->time_ns = bpf_ktime_get_ns();
	e->rdev = c->rdev;
	e->cmd = c->cmd;
	e->ret = c->ret;
	bpf_get_current_comm(e->comm, sizeof(e->comm));
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static long do_hash(__u32 i, struct call *c)
{
	struct key k = { bpf_get_current_cgroup_id(), c->rdev, c->cmd & 0xff };
	__u64 fresh[2] = { 1, c->ret < 0 }, *v = bpf_map_lookup_elem(&table, &k);

	if (!v) {
		bpf_map_update_elem(&table, &k, fresh, BPF_NOEXIST);
		return 0;
	}
	v[0]++;
	if (c->ret < 0)
		v[1]++;
	return 0;
}

#define BENCH(name) \
	SEC("raw_tp") int bench_##name(struct bpf_raw_tracepoint_args *ctx) \
	{ \
		struct call c = { ctx->args[0], ctx->args[1], ctx->args[2], ctx->args[3] }; \
		bpf_loop(ctx->args[4], do_##name, &c, 0); \
		return 0; \
	}
BENCH(nothing)
BENCH(count)
BENCH(other)
BENCH(node)
BENCH(event)
BENCH(hash)

char LICENSE[] SEC("license") = "GPL";
