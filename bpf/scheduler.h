/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What bpf/scheduler.bpf.c shares with kubenpu/kernel/job_times.py, which reads its maps; layout.py holds the same structs.
 */
#ifndef KNPU_SCHEDULER_H
#define KNPU_SCHEDULER_H

#include <linux/types.h>

#define KNPU_RING_NAME 32

enum knpu_scheduler_loss {
	KNPU_LOST_JOBS_FULL,	/* no room for a job that begins */
	KNPU_LOST_TIMES_FULL,	/* no room for the time of a client on a ring */
	KNPU_SCHEDULER_LOSSES,
};

/* Who worked where: a client of DRM, by the id that is its own for the whole boot, on a ring of hardware. */
struct knpu_ring_use {
	__u64 client_id;
	__u8 ring[KNPU_RING_NAME];
};

_Static_assert(sizeof(struct knpu_ring_use) == 40, "ring_use");

/* A job on the hardware. */
struct knpu_running_job {
	struct knpu_ring_use use;
	__u64 scheduler;	/* whose ring it is; never dereferenced */
	__u64 start_ns;
};

_Static_assert(sizeof(struct knpu_running_job) == 56, "running_job");

#endif
