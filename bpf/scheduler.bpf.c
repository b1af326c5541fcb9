// SPDX-License-Identifier: GPL-2.0-only
/*
 * scheduler: how long the hardware worked for which client, where the driver does not tell it itself.
 *
 * Hook -> question
 *   raw_tp drm_sched_job_run    a job is handed to the hardware: whose it is, on which ring, when
 *   raw_tp drm_sched_job_done   it is done: how long that was
 * Cost: a fraction of a microsecond for each of the two, so per job of hardware; nothing where there is no such device,
 * as it is attached only then. Jobs of other drivers cost a comparison of names.
 * Fails towards less: what finds no room in a map, or was begun before we came, has no time. The first is counted.
 * Blind: jobs that no scheduler of the kernel hands out. Interrupt latency counts as work.
 *
 * A ring works on one job at a time, while the next ones may have been handed over already: a job begins when the one
 * before it is done. So what the clients of a ring have never adds up to more than the time that passed. That holds for
 * rings of hardware alone; drivers whose firmware deals with queues (one scheduler for each) are not among timed_drivers.
 *
 * A job is known by the address of its fence, which is its own until after it is done. One that is never done is
 * overwritten by the next with that address.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "scheduler.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct device_driver {
	const char *name;
};

struct device {
	struct device_driver *driver;
};

struct drm_gpu_scheduler {
	const char *name;
	struct device *dev;
};

struct drm_sched_fence {
	__u64 drm_client_id;	/* since 6.17 */
};

struct drm_sched_job {
	struct drm_gpu_scheduler *sched;
	struct drm_sched_fence *s_fence;
};

#pragma clang attribute pop

/* Drivers of the devices whose jobs are timed, filled by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u8[KNPU_RING_NAME]);
	__type(value, __u8);
} timed_drivers SEC(".maps");

/* By fence. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct knpu_running_job);
} running_jobs SEC(".maps");

/* When the last job of a ring was done, by scheduler. Rings are as many as cores; what is left of drivers that were
 * unloaded may go first. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} rings_done SEC(".maps");

/* Nanoseconds. Whoever reads them deletes those of clients that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct knpu_ring_use);
	__type(value, __u64);
} ring_times SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KNPU_SCHEDULER_LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} scheduler_losses SEC(".maps");

static __always_inline void lose(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&scheduler_losses, &reason);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline int is_timed(struct drm_gpu_scheduler *scheduler)
{
	__u8 name[KNPU_RING_NAME] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(scheduler, dev, driver, name));
	return bpf_map_lookup_elem(&timed_drivers, name) != (void *)0;
}

SEC("raw_tp/drm_sched_job_run")
int job_run(struct bpf_raw_tracepoint_args *ctx)
{
	struct drm_sched_job *job = (void *)ctx->args[0];
	struct drm_gpu_scheduler *scheduler = BPF_CORE_READ(job, sched);
	struct drm_sched_fence *fence = BPF_CORE_READ(job, s_fence);
	struct knpu_running_job begun = {};
	__u64 key = (__u64)fence;

	begun.use.client_id = BPF_CORE_READ(fence, drm_client_id);
	if (!begun.use.client_id || !is_timed(scheduler))
		return 0;
	bpf_probe_read_kernel_str(begun.use.ring, sizeof(begun.use.ring), BPF_CORE_READ(scheduler, name));
	begun.scheduler = (__u64)scheduler;
	begun.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&running_jobs, &key, &begun, BPF_ANY))
		lose(KNPU_LOST_JOBS_FULL);
	return 0;
}

static __always_inline void add_time(struct knpu_ring_use *use, __u64 ns)
{
	__u64 *time = bpf_map_lookup_elem(&ring_times, use), none = 0;

	if (!time) {
		bpf_map_update_elem(&ring_times, use, &none, BPF_NOEXIST);
		time = bpf_map_lookup_elem(&ring_times, use);
	}
	if (time)
		__sync_fetch_and_add(time, ns);
	else
		lose(KNPU_LOST_TIMES_FULL);
}

SEC("raw_tp/drm_sched_job_done")
int job_done(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 fence = ctx->args[0], now = bpf_ktime_get_ns(), begin, *last;
	struct knpu_running_job job, *found = bpf_map_lookup_elem(&running_jobs, &fence);

	if (!found)
		return 0;
	job = *found;
	if (bpf_map_delete_elem(&running_jobs, &fence))
		return 0;
	begin = job.start_ns;
	last = bpf_map_lookup_elem(&rings_done, &job.scheduler);
	if (last && *last > begin)
		begin = *last;
	bpf_map_update_elem(&rings_done, &job.scheduler, &now, BPF_ANY);
	if (now > begin)
		add_time(&job.use, now - begin);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
