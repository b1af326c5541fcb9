/* SPDX-License-Identifier: GPL-2.0-only */
/* Every difference between kernels and between header releases that the programs must know, with its reason. */
#ifndef KNPU_COMPAT_BPF_H
#define KNPU_COMPAT_BPF_H

#include <bpf/bpf_helpers.h>
#include <linux/types.h>
#include "drm_ioctl.h"

/* Map type of cgroup local storage, since 6.2 (commit c4bcfb38a95e); Debian 12's linux/bpf.h does not name it.
 * Can go when the oldest build host has the 6.2 uAPI. */
#define KNPU_MAP_TYPE_CGRP_STORAGE 32

/* An index into a device table, bounded where it is used: verifiers before 6.4 forget a bound that was checked in one
 * register when the value is read back from the stack. */
static __always_inline __u32 bounded_slot(__u32 slot)
{
	__asm__ volatile("%0 &= %1" : "+r"(slot) : "i"(KNPU_DEVICE_SLOTS - 1));
	return slot;
}

/* An address of the process. On arm64 its top byte may be a tag of the process's own (memory tagging, HWASan), which drivers
 * never see but bpf_probe_read_user() refuses since 6.4 (commit d319f344561d). */
static __always_inline __u64 untagged(__u64 address)
{
#ifdef __TARGET_ARCH_arm64
	address &= ~0ULL >> 8;
#endif
	return address;
}

#endif
