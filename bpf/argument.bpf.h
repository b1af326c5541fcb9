/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a call says in its argument: its kind, its device, how much work it hands over, or which call it really is.
 * Where the numbers stand is data, written by user space.
 *
 * Reads the memory of the running process when the call begins, before the driver writes its answer over it: at most
 * four numbers of 8 bytes, at offsets below 16 KiB. That memory is whatever the process wants. It may not be mapped or
 * not be present at this moment, and another thread may change it before the driver reads it. So what is found here
 * decides where a call is counted and never whether: whatever cannot be read leaves the call what its number says, and
 * adds to KNPU_LOST_ARGUMENT_UNREAD.
 */
#ifndef KNPU_ARGUMENT_BPF_H
#define KNPU_ARGUMENT_BPF_H

#include "maps.bpf.h"

/* What is known of a call before it is counted. `kind` is a byte of kind[] first, consult() makes a kind of it. */
struct meaning {
	__u32 slot;
	__u32 kind;
	__u64 work;
};

/* Whether the number of a call leaves something to its argument, by its byte of kind[]. */
static __always_inline int has_argument(__u32 byte)
{
	return __builtin_expect(byte >= KNPU_KINDS, 0);
}

static __always_inline __u32 plain_kind(__u32 byte)
{
	byte &= (1 << KNPU_KIND_BITS) - 1;
	return byte < KNPU_KINDS ? byte : KNPU_KINDS - 1;
}

static __always_inline struct knpu_argument *argument_of(__u32 byte, __u32 first)
{
	__u32 index = first + (byte >> KNPU_KIND_BITS) - 1;

	return bpf_map_lookup_elem(&arguments, &index);
}

/* The number of `width` bytes at an address of the process; not 0 when it cannot be read. */
static __always_inline long read_number(__u64 address, __u32 width, __u64 *number)
{
	*number = 0;
	if (width > sizeof(*number))
		return -1;
	/* little-endian, as all machines we are built for */
	return bpf_probe_read_user(number, width, (void *)untagged(address));
}

/* The result for a value, by bisection. */
static __always_inline __u32 result_of(struct knpu_argument *a, __u64 value)
{
	__u32 i = 0, step;

#pragma unroll
	for (step = KNPU_VALUES / 2; step; step /= 2)
		if (a->value[(i + step) & (KNPU_VALUES - 1)] <= value)
			i += step;
	i &= KNPU_VALUES - 1;
	return a->value[i] == value ? a->result[i] : KNPU_NO_RESULT;
}

/* Takes over what a number says. Returns 0 when it cannot be true. */
static __always_inline int believe(struct meaning *m, struct knpu_argument *a, __u64 number)
{
	__u32 result;

	number &= a->mask;
	if (a->says == KNPU_SAYS_WORK) {
		if (number > KNPU_WORK_MAX)
			return 0;
		m->work = number;
		return 1;
	}
	result = result_of(a, number);
	if (a->says == KNPU_SAYS_KIND && result < KNPU_KINDS)
		m->kind = result;
	if (a->says == KNPU_SAYS_SLOT && result < KNPU_DEVICE_SLOTS)
		m->slot = result;
	return 1;
}

static __always_inline int try_consult(struct meaning *m, const __u8 *kinds, __u32 first, __u32 cmd, __u64 arg)
{
	__u64 number, size = cmd >> 16 & 0x3fff;
	__u32 byte = kinds[cmd & 0xff];
	struct knpu_argument *a;

	a = argument_of(byte, first);
	if (!a || size < a->size || read_number(arg + a->offset, a->width, &number))
		return 0;
	if (a->says != KNPU_SAYS_CALL)
		return believe(m, a, number);
	if (number > 0xff || read_number(arg + a->length, 4, &size) || read_number(arg + a->pointer, 8, &arg))
		return 0;
	byte = kinds[number & 0xff];
	m->kind = plain_kind(byte);
	if (!has_argument(byte) || byte == KNPU_ELSEWHERE)
		return 1;
	a = argument_of(byte, first);
	if (!a || size < a->size || read_number(arg + a->offset, a->width, &number))
		return 0;
	return a->says == KNPU_SAYS_CALL || believe(m, a, number);	/* no driver looks for a call inside a call inside */
}

/* For a call whose number leaves something to its argument: `kinds` and `first` of its rule or table. */
static __noinline int consult(struct meaning *m, const __u8 *kinds, __u32 first, __u32 cmd, __u64 arg)
{
	m->kind = plain_kind(m->kind);
	if (!try_consult(m, kinds, first, cmd, arg))
		lose(KNPU_LOST_ARGUMENT_UNREAD);
	return 0;
}

#endif
