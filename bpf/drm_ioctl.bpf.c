// SPDX-License-Identifier: GPL-2.0-only
/*
 * drm_ioctl: which cgroup called which DRM or accel device how often, with what result, and how long it waited.
 *
 * Hook -> question
 *   fexit drm_ioctl            one call that returned: count, error, time of a wait   (preferred)
 *   fentry drm_ioctl           when a wait began, and what an argument says: drivers write their answer over it
 *   kprobe, kretprobe          the same in two halves, where fentry cannot attach or the kernel preempts programs
 *   uprobe, uretprobe          the same on a user-space function: the simulated node and the tests
 * Cost: see `make bench`; about 20 ns a counted call on 6.2 and later, one array look-up for a call without a rule.
 * Fails towards "declared lost": no path drops a call without adding to a loss counter.
 * Blind: calls answered before, by the driver (nouveau's object call, which file_ioctl counts) or from DRM's own table
 * for 32-bit calls, and work submitted without an ioctl. Calls still blocked inside the driver are counted when they
 * return (fexit) or at once (kprobe).
 *
 * What is attached are the *_hook programs; they jump to the program in enter_body[0] or exit_body[0]. Replacing
 * that element replaces the code between two calls: each call runs exactly one body, which makes an upgrade exact.
 */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "count.bpf.h"
#include "jump.bpf.h"

/* exit_body: as enter_body, for the hooks at the return. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} exit_body SEC(".maps");

static __always_inline int leave(void *ctx)
{
	bpf_tail_call(ctx, &exit_body, body_index);
	lose(KNPU_LOST_NO_BODY);
	return 0;
}

SEC("fentry/drm_ioctl")
int fentry_hook(__u64 *ctx)
{
	return enter(ctx);
}

SEC("fentry/drm_ioctl")
int BPF_PROG(fentry_body, struct file *file, unsigned int cmd, unsigned long arg)
{
	struct call c = { .rdev = file->f_inode->i_rdev, .cmd = cmd, .arg = arg };

	note_begin(&c);
	return 0;
}

SEC("fexit/drm_ioctl")
int fexit_hook(__u64 *ctx)
{
	return leave(ctx);
}

SEC("fexit/drm_ioctl")
int BPF_PROG(fexit_body, struct file *file, unsigned int cmd, unsigned long arg, long ret)
{
	struct call c = { .rdev = file->f_inode->i_rdev, .cmd = cmd, .arg = arg, .ret = ret };

	count_whole(&c);
	return 0;
}

SEC("kprobe/drm_ioctl")
int kprobe_hook(struct pt_regs *ctx)
{
	return enter(ctx);
}

SEC("kprobe/drm_ioctl")
int kprobe_body(struct pt_regs *ctx)
{
	struct file *file = (struct file *)PT_REGS_PARM1(ctx);
	struct call c = { .cmd = PT_REGS_PARM2(ctx), .arg = PT_REGS_PARM3(ctx) };

	c.rdev = BPF_CORE_READ(file, f_inode, i_rdev);
	count_begin(&c);
	return 0;
}

SEC("kretprobe/drm_ioctl")
int kretprobe_hook(struct pt_regs *ctx)
{
	return leave(ctx);
}

SEC("kretprobe/drm_ioctl")
int kretprobe_body(struct pt_regs *ctx)
{
	count_end(PT_REGS_RC(ctx));
	return 0;
}

/* The hooked function is int f(unsigned int rdev, unsigned int cmd, void *arg, ...), rdev as in the kernel. */
SEC("uprobe")
int uprobe_body(struct pt_regs *ctx)
{
	struct call c = { .rdev = PT_REGS_PARM1(ctx), .cmd = PT_REGS_PARM2(ctx), .arg = PT_REGS_PARM3(ctx) };

	count_begin(&c);
	return 0;
}

SEC("uretprobe")
int uretprobe_body(struct pt_regs *ctx)
{
	count_end((int)PT_REGS_RC(ctx));
	return 0;
}

SEC("uprobe")
int uprobe_hook(struct pt_regs *ctx)
{
	return enter(ctx);
}

SEC("uretprobe")
int uretprobe_hook(struct pt_regs *ctx)
{
	return leave(ctx);
}

/* The body without a hook: the loader runs it once before it attaches anything, tests and benchmarks run it often. */
SEC("raw_tp")
int run_body(struct bpf_raw_tracepoint_args *ctx)
{
	struct call c = { .rdev = ctx->args[0], .cmd = ctx->args[1], .arg = ctx->args[2], .ret = ctx->args[3] };

	note_begin(&c);
	count_whole(&c);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
