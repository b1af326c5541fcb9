// SPDX-License-Identifier: Apache-2.0
/*
 * Short containers: a process is born inside a cgroup, calls knpu_call(), which the test hooks with a uprobe, and ends.
 *   churn ROOT RDEV CMD CALLS
 * Reads POD/CONTAINER, a path below ROOT, from each line of standard input; makes both cgroups, and removes them again.
 * An empty line is answered by one, when all before it are done.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) int knpu_call(unsigned node, unsigned number, int ret)
{
	__asm__ volatile("" ::"r"(node), "r"(number) : "memory");
	return ret;
}

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

static void live(const char *container, unsigned rdev, unsigned cmd, int calls)
{
	struct clone_args args = { .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD };
	int status;
	pid_t pid;

	args.cgroup = open(container, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	check((int)args.cgroup < 0, container);
	pid = syscall(SYS_clone3, &args, sizeof(args));
	check(pid < 0, "clone3");
	if (pid == 0) {
		for (int i = 0; i < calls; i++)
			knpu_call(rdev, cmd, 0);
		_exit(0);
	}
	check(waitpid(pid, &status, 0) != pid || status != 0, "waitpid");
	close(args.cgroup);
}

int main(int argc, char **argv)
{
	unsigned rdev = strtoul(argv[2], NULL, 0), cmd = strtoul(argv[3], NULL, 0);
	int calls = atoi(argv[4]);
	char line[4096];

	check(argc != 5 || chdir(argv[1]), argv[1]);
	while (fgets(line, sizeof(line), stdin)) {
		char *slash = strchr(line, '/');

		line[strcspn(line, "\n")] = 0;
		if (!slash) {
			puts("");
			fflush(stdout);
			continue;
		}
		*slash = 0;
		check(mkdir(line, 0755), line);
		*slash = '/';
		check(mkdir(line, 0755), line);
		live(line, rdev, cmd, calls);
		check(rmdir(line), line);
		*slash = 0;
		check(rmdir(line), line);
	}
	return 0;
}
