// SPDX-License-Identifier: Apache-2.0
/*
 * A workload with a tally of its own: calls knpu_call(), which the tests hook with a uprobe, from several threads.
 *   caller RDEV CMD COUNT THREADS [ERROR_EVERY [WAIT_US [ARGUMENT]]]
 * ARGUMENT is the number that the first eight bytes of each call's argument hold. As drivers do, the function writes over
 * them. Waits for a line on standard input before it begins, so that it can be put into a cgroup first.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static unsigned rdev, cmd;
static long count, error_every, wait_us;
static uint64_t value;

__attribute__((noinline)) int knpu_call(unsigned node, unsigned number, uint64_t *argument, int ret)
{
	__asm__ volatile("" ::"r"(node), "r"(number), "r"(argument) : "memory");
	*argument = UINT64_MAX;
	if (wait_us)
		usleep(wait_us);
	return ret;
}

static void *work(void *unused)
{
	uint64_t argument;

	for (long i = 1; i <= count; i++) {
		argument = value;
		knpu_call(rdev, cmd, &argument, error_every && i % error_every == 0 ? -5 : 0);
	}
	return unused;
}

int main(int argc, char **argv)
{
	int threads = atoi(argv[4]);
	pthread_t ids[64];

	rdev = strtoul(argv[1], NULL, 0);
	cmd = strtoul(argv[2], NULL, 0);
	count = atol(argv[3]);
	error_every = argc > 5 ? atol(argv[5]) : 0;
	wait_us = argc > 6 ? atol(argv[6]) : 0;
	value = argc > 7 ? strtoull(argv[7], NULL, 0) : 0;
	getchar();
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, work, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("%ld\n", count * threads);
	return 0;
}
