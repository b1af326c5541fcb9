/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A workload of the simulated node: calls one exported function as a program would call ioctl() on a DRM device.
 *
 *   sim_workload TALLY RDEV CALLS_PER_SECOND WAIT_MICROSECONDS NR:KIND:TIMES:FAILING...
 *
 * TALLY is a file of sizeof(struct tally) bytes, shared with whoever started this: the count of what was done, and
 * the word by which the workload is paused and stopped between two calls. One round makes each kind of call TIMES
 * times, the first FAILING of them with an error. RDEV is the kernel's dev_t. Numbers are decimal or 0x.
 * Ends with its parent; prints its tally as JSON when it was asked to stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 7, KIND_WAIT = 4, STEPS_MAX = 32 };
enum { RUN = 0, STOP = 1 };	/* larger values of `control`: pause number */

/* tests/fakes/sim_tally.py holds the same layout. */
struct tally {
	_Atomic uint64_t control;	/* written by the parent */
	_Atomic uint64_t parked;	/* the pause that is in effect */
	uint64_t calls[KINDS];
	uint64_t errors[KINDS];
	uint64_t wait_within_ns;	/* measured inside the function: never more than the truth */
	uint64_t wait_around_ns;	/* measured around the call: never less */
};

struct step {
	unsigned nr, kind, times, failing;
};

static long wait_us;
static const uint32_t argument[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };	/* one piece of work, wherever */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);	/* the clock of bpf_ktime_get_ns() */
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec left = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

/* What the uprobes hook. A wait really blocks in here; the time that passed is left in *within. */
static uint64_t *within;

__attribute__((noinline, used, visibility("default")))
int kubenpu_sim_ioctl(unsigned rdev, unsigned cmd, const void *arg, int ret)
{
	if (within) {
		uint64_t begin = now_ns();

		sleep_ns((uint64_t)wait_us * 1000);
		*within += now_ns() - begin;
	}
	__asm__ volatile("" : : "r"(rdev), "r"(cmd), "r"(arg) : "memory");
	return ret;
}

static void call(struct tally *t, unsigned rdev, const struct step *s, int failing)
{
	uint64_t begin = now_ns();

	within = s->kind == KIND_WAIT ? &t->wait_within_ns : NULL;
	kubenpu_sim_ioctl(rdev, _IOC(_IOC_READ | _IOC_WRITE, 'd', s->nr, sizeof(argument)), argument,
			  failing ? -EINVAL : 0);
	if (s->kind == KIND_WAIT)
		t->wait_around_ns += now_ns() - begin;
	t->calls[s->kind]++;
	t->errors[s->kind] += failing != 0;
}

/* Between two calls: stays here while paused. Returns 0 when it is time to stop. */
static int go_on(struct tally *t)
{
	uint64_t control;

	while ((control = atomic_load(&t->control)) != RUN) {
		if (control == STOP)
			return 0;
		atomic_store(&t->parked, control);
		sleep_ns(1000000);
	}
	return 1;
}

static void print_row(const char *name, const uint64_t *values)
{
	printf("\"%s\": [", name);
	for (int i = 0; i < KINDS; i++)
		printf("%s%" PRIu64, i ? ", " : "", values[i]);
	printf("], ");
}

static void print_tally(const struct tally *t)
{
	printf("{");
	print_row("calls", t->calls);
	print_row("errors", t->errors);
	printf("\"wait_within_ns\": %" PRIu64 ", \"wait_around_ns\": %" PRIu64 "}\n", t->wait_within_ns,
	       t->wait_around_ns);
}

static unsigned parse_step(const char *text, struct step *s)
{
	char rest;

	if (sscanf(text, "%i:%u:%u:%u%c", (int *)&s->nr, &s->kind, &s->times, &s->failing, &rest) != 4)
		return 0;
	return s->nr < 256 && s->kind < KINDS && s->failing <= s->times ? s->times : 0;
}

static struct tally *open_tally(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *memory;

	if (fd < 0)
		return NULL;
	memory = mmap(NULL, sizeof(struct tally), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return memory == MAP_FAILED ? NULL : memory;
}

int main(int argc, char **argv)
{
	struct step steps[STEPS_MAX];
	unsigned rdev, calls = 0;
	uint64_t rate, pause_ns;
	struct tally *t;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc < 6 || argc - 5 > STEPS_MAX) {
		fprintf(stderr, "usage: sim_workload TALLY RDEV CALLS_PER_SECOND WAIT_US NR:KIND:TIMES:FAILING...\n");
		return 2;
	}
	t = open_tally(argv[1]);
	if (!t) {
		perror(argv[1]);
		return 1;
	}
	rdev = (unsigned)strtoul(argv[2], NULL, 0);
	rate = strtoul(argv[3], NULL, 0);
	wait_us = strtol(argv[4], NULL, 0);
	for (int i = 5; i < argc; i++) {
		unsigned times = parse_step(argv[i], &steps[i - 5]);

		if (!times) {
			fprintf(stderr, "sim_workload: bad step %s\n", argv[i]);
			return 2;
		}
		calls += times;
	}
	pause_ns = rate ? (uint64_t)calls * 1000000000 / rate : 0;
	while (go_on(t)) {
		for (int i = 0; i < argc - 5; i++)
			for (unsigned n = 0; n < steps[i].times && go_on(t); n++)
				call(t, rdev, &steps[i], n < steps[i].failing);
		sleep_ns(pause_ns);
	}
	print_tally(t);
	return 0;
}
