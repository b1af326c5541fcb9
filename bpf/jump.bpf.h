/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a hook reaches the code behind it. What is attached are the *_hook programs; they jump to the program in the one
 * element of a program array. Replacing it replaces the code between two calls: each call runs exactly one body.
 */
#ifndef KNPU_JUMP_BPF_H
#define KNPU_JUMP_BPF_H

#include "maps.bpf.h"

/* enter_body: written by the loader, read by the hooks. All programs of one array have one type. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} enter_body SEC(".maps");

/* Always 0, but not to the verifier: a jump with a constant index is patched into the code at every replacement, which
 * stops all CPUs, and emulators with a race in how they see patched code (QEMU before 8.1) then kill the guest. */
static volatile __u32 body_index;

static __always_inline int enter(void *ctx)
{
	bpf_tail_call(ctx, &enter_body, body_index);
	lose(KNPU_LOST_NO_BODY);
	return 0;
}

#endif
