// SPDX-License-Identifier: GPL-2.0-only
/*
 * file_ioctl: which cgroup called which accelerator that is a plain character device, how often and for what. And what
 * drm_ioctl never sees of a DRM device's calls (nouveau's object call).
 *
 * Hook -> question
 *   lsm file_ioctl             one call that is about to reach the driver   (preferred: never skipped, refused calls are
 *                              not seen if another security module refused them first)
 *   fentry, kprobe             the same on security_file_ioctl, where the BPF LSM is off
 *   ..._compat                 the same for 32-bit programs, where the kernel tells them apart (6.8, stable 6.6 and 6.1)
 *   uprobe                     the same on a user-space function: the simulated node and the tests
 * Cost: every ioctl of this machine passes here, hence attached only while such a device exists. See `make bench`: a few
 * ns for other files, about 30 ns a counted call.
 * Fails towards "declared lost", as drm_ioctl does; a minor without a rule counts as unknown where its major has
 * accelerators only.
 * Arguments are read before the driver has them, from memory of the process, which may change them meanwhile; see
 * argument.bpf.h.
 * Blind: what becomes of the call, hence no errors and no waiting time. Files without a device number, but for those of
 * VFIO (vfio.bpf.h). Calls that a later security module refuses (fentry, kprobe: all of them). io_uring commands.
 *
 * Hooks jump to bodies as in drm_ioctl.bpf.c, for the same reasons.
 */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "jump.bpf.h"
#include "node.bpf.h"
#include "vfio.bpf.h"

/* compat_body: as enter_body, for the hooks of 32-bit calls. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} compat_body SEC(".maps");

static __always_inline int compat(void *ctx)
{
	bpf_tail_call(ctx, &compat_body, body_index);
	lose(KNPU_LOST_NO_BODY);
	return 0;
}

static __always_inline int count_file(struct file *file, __u32 cmd, unsigned long arg)
{
	struct inode *inode = file->f_inode;

	if ((inode->i_mode & S_IFMT) == S_IFCHR)
		count_node(inode->i_rdev, cmd, arg);
	else if (knpu_capture_names && is_of_vfio(cmd))
		count_vfio(file);
	return 0;
}

static __always_inline int count_registers(struct pt_regs *ctx)
{
	struct file *file = (struct file *)PT_REGS_PARM1(ctx);
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFCHR)
		count_node(BPF_CORE_READ(inode, i_rdev), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx));
	else if (knpu_kernel_btf && is_of_vfio(PT_REGS_PARM2(ctx)))
		count_vfio(file);
	return 0;
}

/* One way to attach, both kinds of calls: the hook that is attached, and the body behind it. */
#define TRACED(name, section, jump) \
	SEC(section) int name##_hook(__u64 *ctx) { return jump(ctx); } \
	SEC(section) int BPF_PROG(name##_body, struct file *file, unsigned int cmd, unsigned long arg) \
	{ \
		return count_file(file, cmd, arg); \
	}
#define PROBED(name, section, jump) \
	SEC(section) int name##_hook(struct pt_regs *ctx) { return jump(ctx); } \
	SEC(section) int name##_body(struct pt_regs *ctx) { return count_registers(ctx); }

TRACED(lsm, "lsm/file_ioctl", enter)
TRACED(lsm_compat, "lsm/file_ioctl_compat", compat)
TRACED(fentry, "fentry/security_file_ioctl", enter)
TRACED(fentry_compat, "fentry/security_file_ioctl_compat", compat)
PROBED(kprobe, "kprobe/security_file_ioctl", enter)
PROBED(kprobe_compat, "kprobe/security_file_ioctl_compat", compat)

/* The hooked function is int f(unsigned int rdev, unsigned int cmd, void *arg, ...), rdev as in the kernel. */
SEC("uprobe")
int uprobe_hook(struct pt_regs *ctx)
{
	return enter(ctx);
}

SEC("uprobe")
int uprobe_body(struct pt_regs *ctx)
{
	count_node(PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx));
	return 0;
}

/* The body without a hook, for self-test and tests. */
SEC("raw_tp")
int run_body(struct bpf_raw_tracepoint_args *ctx)
{
	count_node(ctx->args[0], ctx->args[1], ctx->args[2]);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
