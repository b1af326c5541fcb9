// SPDX-License-Identifier: Apache-2.0
/*
 * The reader that an event per call needs: takes every event out of the pinned ring buffer and adds it up per
 * (cgroup, device, ioctl number) in a hash table, as fast as it can. SIGTERM: prints how many it took, and its CPU time.
 *   drain PINNED_RING
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>

struct event {
	uint64_t cgroup_id;
	uint64_t time_ns;
	uint32_t rdev;
	uint32_t cmd;
	int64_t ret;
	char comm[16];
};

static struct {
	uint64_t cgroup_id, calls, errors;
	uint32_t rdev, nr;
} table[4096];

static volatile sig_atomic_t ended;
static uint64_t taken;

static void end(int number)
{
	(void)number;
	ended = 1;
}

static int take(void *context, void *data, size_t size)
{
	const struct event *e = data;
	uint32_t nr = e->cmd & 0xff;
	uint64_t slot = (e->cgroup_id * 0x9e3779b97f4a7c15u ^ e->rdev * 31u ^ nr) % 4096;

	(void)context;
	(void)size;
	while (table[slot].calls &&
	       (table[slot].cgroup_id != e->cgroup_id || table[slot].rdev != e->rdev || table[slot].nr != nr))
		slot = (slot + 1) % 4096;
	table[slot].cgroup_id = e->cgroup_id;
	table[slot].rdev = e->rdev;
	table[slot].nr = nr;
	table[slot].calls++;
	table[slot].errors += e->ret < 0;
	taken++;
	return 0;
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? bpf_obj_get(argv[1]) : -1;
	struct ring_buffer *ring = fd < 0 ? NULL : ring_buffer__new(fd, take, NULL, NULL);
	struct rusage use;

	if (!ring) {
		perror("drain");
		return 1;
	}
	signal(SIGTERM, end);
	puts("ready");
	fflush(stdout);
	while (!ended)
		ring_buffer__poll(ring, 100);
	ring_buffer__consume(ring);
	getrusage(RUSAGE_SELF, &use);
	printf("%lu %.3f\n", (unsigned long)taken,
	       use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
	return 0;
}
