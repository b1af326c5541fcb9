// SPDX-License-Identifier: Apache-2.0
/* A program that makes a known number of DRM ioctls and says how many it made.
 *
 * The tally is exact: one entry for each ioctl(2) that returned, setup and clean-up calls included, by number and by
 * outcome. Signal handlers do not restart calls, so one system call is one call of the driver. With --tally the
 * counters live in a shared file and survive SIGKILL; `workload --read FILE` prints them. A call that was inside the
 * kernel at the kill was started and is in no other column.
 *
 * Each thread opens the node itself and works through the script alone, then again and again while --seconds last.
 * Without --node it only waits (--hold): the first process of a pod.
 * Needs nothing but a kernel: no headers of libdrm, static, works as process 1 of a container.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define MAX_STEPS 128
#define BUFFER_BYTES 4096

/* ---- the tally: one row per thread, so that threads share no cache line --------------------------------------- */

struct count {
	uint64_t started, ok, error;
};

struct row {
	struct count by_nr[256];
};

static struct row *rows;
static unsigned int thread_count = 1;

static struct row *map_rows(const char *path, bool readonly)
{
	size_t size = sizeof(struct row) * MAX_THREADS;
	int fd = -1;

	if (path) {
		fd = open(path, readonly ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC, 0644);
		if (fd < 0 || (!readonly && ftruncate(fd, size)))
			return MAP_FAILED;
	}
	return mmap(NULL, size, readonly ? PROT_READ : PROT_READ | PROT_WRITE,
		    MAP_SHARED | (path ? 0 : MAP_ANONYMOUS), fd, 0);
}

static void print_tally(void)
{
	const char *separator = "";

	printf("{\"pid\": %d, \"calls\": {", (int)getpid());
	for (int nr = 0; nr < 256; nr++) {
		struct count sum = {0};

		for (int thread = 0; thread < MAX_THREADS; thread++) {
			sum.started += rows[thread].by_nr[nr].started;
			sum.ok += rows[thread].by_nr[nr].ok;
			sum.error += rows[thread].by_nr[nr].error;
		}
		if (!sum.started)
			continue;
		printf("%s\"0x%02x\": [%llu, %llu, %llu]", separator, nr, (unsigned long long)sum.ok,
		       (unsigned long long)sum.error, (unsigned long long)sum.started);
		separator = ", ";
	}
	printf("}}\n");
	fflush(stdout);
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

struct client {
	int fd;
	unsigned int type;
	struct count *by_nr;
	uint32_t virtio_handle, dumb_handle;
};

static bool compat;

/* As a 32-bit program calls, where one can: the argument has to lie in the first 4 GiB. Built as one, it is one. */
static long compat_ioctl(int fd, unsigned int cmd, void *arg)
{
	long result = -ENOSYS;

	(void)fd, (void)cmd, (void)arg;
#if __SIZEOF_POINTER__ == 4
	return syscall(SYS_ioctl, fd, cmd, arg);
#elif defined(__x86_64__)
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(54), "b"(fd), "c"(cmd), "d"(arg) : "memory");
	result = (int)result;
#endif
	if (result >= 0)
		return result;
	errno = -result;
	return -1;
}

static long call_whole(struct client *client, unsigned int cmd, void *arg)
{
	struct count *count = &client->by_nr[cmd & 0xff];
	long result;

	count->started++;
	atomic_signal_fence(memory_order_seq_cst);
	result = compat ? compat_ioctl(client->fd, cmd, arg) : syscall(SYS_ioctl, client->fd, cmd, arg);
	if (result < 0)
		count->error++;
	else
		count->ok++;
	return result;
}

static long call(struct client *client, unsigned int nr, unsigned int dir, unsigned int size, void *arg)
{
	return call_whole(client, _IOC(dir, client->type, nr, size), arg);
}

#define CALL(client, nr, arg) call(client, nr, _IOC_READ | _IOC_WRITE, sizeof(*(arg)), arg)

static void gem_close(struct client *client, uint32_t handle)
{
	struct { uint32_t handle, pad; } arg = {.handle = handle};

	call(client, 0x09, _IOC_WRITE, sizeof(arg), &arg);
}

static void do_get_cap(struct client *client)
{
	struct { uint64_t capability, value; } arg = {.capability = 5}; /* PRIME: known without KMS too */

	CALL(client, 0x0c, &arg);
}

static void do_bad_close(struct client *client)
{
	gem_close(client, 0xdeadbeef);
}

static uint32_t virtio_create(struct client *client)
{
	struct {
		uint32_t target, format, bind, width, height, depth, array_size, last_level, nr_samples, flags;
		uint32_t bo_handle, res_handle, size, stride;
	} arg = {.target = 2, .format = 1, .bind = 2, .width = 32, .height = 32, .depth = 1, .array_size = 1,
		 .size = BUFFER_BYTES};

	return CALL(client, 0x44, &arg) < 0 ? 0 : arg.bo_handle;
}

static uint32_t virtio_buffer(struct client *client)
{
	if (!client->virtio_handle)
		client->virtio_handle = virtio_create(client);
	return client->virtio_handle;
}

static void do_getparam(struct client *client)
{
	uint64_t value = 0;
	struct { uint64_t param, value; } arg = {.param = 1, .value = (uintptr_t)&value};

	CALL(client, 0x43, &arg);
}

static void do_resource_create(struct client *client)
{
	gem_close(client, virtio_create(client));
}

static void do_virtio_map(struct client *client)
{
	struct { uint64_t offset; uint32_t handle, pad; } arg = {.handle = virtio_buffer(client)};

	CALL(client, 0x41, &arg);
}

static void do_virtio_wait(struct client *client)
{
	struct { uint32_t handle, flags; } arg = {.handle = virtio_buffer(client)};

	CALL(client, 0x48, &arg);
}

static void do_execbuffer(struct client *client)
{
	struct {
		uint32_t flags, size;
		uint64_t command, bo_handles;
		uint32_t num_bo_handles;
		int32_t fence_fd;
	} arg = {.flags = 0};

	CALL(client, 0x42, &arg);
}

static uint32_t dumb_create(struct client *client)
{
	struct {
		uint32_t height, width, bpp, flags, handle, pitch;
		uint64_t size;
	} arg = {.height = 32, .width = 32, .bpp = 32};

	return CALL(client, 0xb2, &arg) < 0 ? 0 : arg.handle;
}

static uint32_t dumb_buffer(struct client *client)
{
	if (!client->dumb_handle)
		client->dumb_handle = dumb_create(client);
	return client->dumb_handle;
}

static void do_create_dumb(struct client *client)
{
	struct { uint32_t handle; } arg = {.handle = dumb_create(client)};

	CALL(client, 0xb4, &arg);
}

static void do_map_dumb(struct client *client)
{
	struct { uint32_t handle, pad; uint64_t offset; } arg = {.handle = dumb_buffer(client)};

	CALL(client, 0xb3, &arg);
}

/* Attaches a fence that nobody else waits for, then signals it: two calls of the driver. */
static void do_vgem_fence(struct client *client)
{
	struct { uint32_t handle, flags, out_fence, pad; } attach = {.handle = dumb_buffer(client), .flags = 1};
	struct { uint32_t fence, flags; } signal = {0};

	CALL(client, 0x41, &attach);
	signal.fence = attach.out_fence;
	call(client, 0x42, _IOC_WRITE, sizeof(signal), &signal);
}

static const struct action {
	const char *name;
	void (*run)(struct client *client);
	const char *calls;
} actions[] = {
	{"get_cap", do_get_cap, "any driver: 0x0c"},
	{"bad_close", do_bad_close, "any driver: 0x09, an error"},
	{"getparam", do_getparam, "virtio_gpu: 0x43"},
	{"resource_create", do_resource_create, "virtio_gpu: 0x44, then 0x09"},
	{"virtio_map", do_virtio_map, "virtio_gpu: 0x44 once per thread, then 0x41 each"},
	{"virtio_wait", do_virtio_wait, "virtio_gpu: 0x44 once per thread, then 0x48 each"},
	{"execbuffer", do_execbuffer, "virtio_gpu: 0x42, an error without 3D"},
	{"create_dumb", do_create_dumb, "card node: 0xb2, then 0xb4"},
	{"map_dumb", do_map_dumb, "card node: 0xb2 once per thread, then 0xb3 each"},
	{"vgem_fence", do_vgem_fence, "vgem card node: 0xb2 once per thread, then 0x41 and 0x42"},
};

/* ---- the script --------------------------------------------------------------------------------------------------- */

static struct step {
	const struct action *action; /* NULL: a raw call, with the bytes of --argument and zeros up to ARGUMENT_BYTES */
	unsigned int nr;
	bool whole; /* `nr` is the whole command; it is told under its low byte */
	unsigned long count;
} steps[MAX_STEPS];

static unsigned int step_count;
#define ARGUMENT_BYTES 256
static unsigned char argument[ARGUMENT_BYTES];
static unsigned int ioctl_type = 'd';
static int enveloped = -1;
static uintptr_t tag; /* upper byte of the addresses of raw calls; arm64 alone has such */
static const char *node;
static double rate, seconds;
static volatile sig_atomic_t stopped;

static void usage(void)
{
	fprintf(stderr, "usage: workload --node PATH [--do ACTION|NR|=COMMAND[:COUNT],...] [--threads N] [--rate CALLS_PER_SECOND]\n"
			"                [--seconds S] [--type CHAR|NUMBER] [--argument HEX] [--envelope NR] [--compat] [--tagged]\n"
			"                [--hold] [--tally FILE]\n"
			"       workload --read FILE\n"
			"Prints one line of JSON: {\"calls\": {\"0x43\": [ok, error, started], ...}}. --rate is per thread.\n"
			"--argument: the first bytes of what raw calls carry; --envelope: as the call NR in an envelope of NVIDIA's.\n"
			"--compat: raw calls as a 32-bit program makes them. --tagged: with the addresses of a program that tags its memory.\n"
			"--hold: when done, wait for SIGTERM or SIGINT. Actions and the calls they make:\n");
	for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
		fprintf(stderr, "  %-16s %s\n", actions[i].name, actions[i].calls);
	exit(2);
}

static void parse_step(char *text)
{
	struct step *step = &steps[step_count++];
	char *colon = strchr(text, ':'), *end;

	if (step_count == MAX_STEPS)
		usage();
	step->count = colon ? strtoul(colon + 1, NULL, 0) : 1;
	if (colon)
		*colon = '\0';
	for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
		if (!strcmp(text, actions[i].name))
			step->action = &actions[i];
	if (step->action)
		return;
	step->whole = *text == '=';
	text += step->whole;
	step->nr = strtoul(text, &end, 0);
	if (end == text || *end || (!step->whole && step->nr > 255))
		usage();
}

static void tag_addresses(void)
{
#ifdef __aarch64__
	tag = (uintptr_t)0x5a << 56;
	if (!prctl(PR_SET_TAGGED_ADDR_CTRL, PR_TAGGED_ADDR_ENABLE, 0, 0, 0))
		return;
#endif
	fprintf(stderr, "workload: no tagged addresses here\n");
	exit(1);
}

static void parse_argument(const char *text)
{
	unsigned int length = 0, byte;

	for (; text[0] && text[1] && length < ARGUMENT_BYTES && sscanf(text, "%2x", &byte) == 1; text += 2)
		argument[length++] = byte;
	if (*text)
		usage();
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void pace(double begin, unsigned long done)
{
	double due = begin + done / rate;
	double wait = due - now();
	struct timespec time = {.tv_sec = wait, .tv_nsec = (wait - (long)wait) * 1e9};

	if (wait > 0)
		nanosleep(&time, NULL);
}

static void run_step(struct client *client, const struct step *step)
{
	static unsigned char all[MAX_THREADS][ARGUMENT_BYTES]; /* static: below 4 GiB */
	unsigned char *mine = all[(struct row *)client->by_nr - rows];
	struct { uint32_t nr, size; uint64_t pointer; } envelope = {enveloped, ARGUMENT_BYTES, (uintptr_t)mine | tag};

	memcpy(mine, argument, ARGUMENT_BYTES); /* the call may have written there */
	mine = (unsigned char *)((uintptr_t)mine | tag);
	if (step->action)
		step->action->run(client);
	else if (step->whole)
		call_whole(client, step->nr, mine);
	else if (enveloped >= 0)
		CALL(client, step->nr, &envelope);
	else
		call(client, step->nr, _IOC_READ | _IOC_WRITE, ARGUMENT_BYTES, mine);
}

static void *work(void *row)
{
	struct client client = {.fd = open(node, O_RDWR | O_CLOEXEC), .type = ioctl_type, .by_nr = ((struct row *)row)->by_nr};
	double begin = now();
	unsigned long done = 0;

	if (client.fd < 0) {
		fprintf(stderr, "workload: %s: %s\n", node, strerror(errno));
		exit(1);
	}
	do {
		for (unsigned int i = 0; i < step_count; i++)
			for (unsigned long n = 0; n < steps[i].count && !stopped; n++) {
				run_step(&client, &steps[i]);
				if (rate > 0)
					pace(begin, ++done);
			}
	} while (!stopped && now() - begin < seconds);
	close(client.fd);
	return NULL;
}

static void on_signal(int signal)
{
	(void)signal;
	stopped = 1;
}

static void run(bool hold)
{
	struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: see the top of this file */
	pthread_t threads[MAX_THREADS];
	sigset_t blocked, before;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	if (!node)
		thread_count = 0;
	for (unsigned int i = 0; i < thread_count; i++)
		if (pthread_create(&threads[i], NULL, work, &rows[i]))
			exit(1);
	for (unsigned int i = 0; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	print_tally();
	if (!hold)
		return;
	sigprocmask(SIG_BLOCK, &blocked, &before);
	while (!stopped)
		sigsuspend(&before);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"node", required_argument, NULL, 'n'},	   {"do", required_argument, NULL, 'd'},
		{"threads", required_argument, NULL, 't'}, {"rate", required_argument, NULL, 'r'},
		{"seconds", required_argument, NULL, 's'}, {"type", required_argument, NULL, 'T'},
		{"hold", no_argument, NULL, 'h'},	   {"tally", required_argument, NULL, 'f'},
		{"read", required_argument, NULL, 'R'},	   {"compat", no_argument, NULL, 'c'},
		{"argument", required_argument, NULL, 'a'}, {"envelope", required_argument, NULL, 'e'},
		{"tagged", no_argument, NULL, 'g'},
		{0},
	};
	const char *tally = NULL, *read_from = NULL;
	bool hold = false;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'n': node = optarg; break;
		case 'd':
			for (char *text = strtok(optarg, ","); text; text = strtok(NULL, ","))
				parse_step(text);
			break;
		case 't': thread_count = strtoul(optarg, NULL, 0); break;
		case 'r': rate = strtod(optarg, NULL); break;
		case 's': seconds = strtod(optarg, NULL); break;
		case 'T': ioctl_type = optarg[1] ? strtoul(optarg, NULL, 0) & 0xff : (unsigned char)optarg[0]; break;
		case 'a': parse_argument(optarg); break;
		case 'e': enveloped = strtoul(optarg, NULL, 0) & 0xff; break;
		case 'h': hold = true; break;
		case 'c': compat = true; break;
		case 'g': tag_addresses(); break;
		case 'f': tally = optarg; break;
		case 'R': read_from = optarg; break;
		default: usage();
		}
	}
	if (optind < argc || (!read_from && !node && (step_count || !hold)) || thread_count < 1 || thread_count > MAX_THREADS)
		usage();
	rows = map_rows(read_from ? read_from : tally, read_from != NULL);
	if (rows == MAP_FAILED) {
		fprintf(stderr, "workload: %s: %s\n", read_from ? read_from : tally, strerror(errno));
		return 1;
	}
	if (read_from)
		print_tally();
	else
		run(hold);
	return 0;
}
