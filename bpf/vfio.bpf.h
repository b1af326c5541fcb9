/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A call on a device of VFIO whose file a group handed out: an anonymous inode, which has no device number. It is known by
 * the name that the kernel gave the file, the device by its own name, which is its PCI address. Both are the kernel's:
 * nobody else makes files in that file system.
 */
#ifndef KNPU_VFIO_BPF_H
#define KNPU_VFIO_BPF_H

#include "count.bpf.h"

#define ANON_INODE_FS_MAGIC 0x09041934
#define VFIO_DEVICE_FIRST 0x3b6b	/* ';', VFIO_DEVICE_GET_INFO: no size, no direction */
#define VFIO_DEVICE_LAST 0x3b7f

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Of the module vfio, found where it is loaded. Its device node in sysfs makes kubenpu-probe load anew. */
struct vfio_device {
	struct device *dev;
};

struct vfio_device_file {	/* since 6.5, what the file's private_data points to */
	struct vfio_device *device;
};

#pragma clang attribute pop

union vfio_name {
	char text[16];
	__u64 words[2];
};

struct vfio_search {
	union vfio_name name;
	__u32 slot1;
};

static __always_inline int is_of_vfio(__u32 cmd)
{
	return cmd >= VFIO_DEVICE_FIRST && cmd <= VFIO_DEVICE_LAST;
}

/* The name of the device behind a file; nothing when it is not VFIO's. */
static __always_inline void read_vfio_name(struct file *file, union vfio_name *name)
{
	const union vfio_name wanted = { .text = "[vfio-device]" };
	void *data = BPF_CORE_READ(file, private_data);
	const void *text;

	if (BPF_CORE_READ(file, f_inode, i_sb, s_magic) != ANON_INODE_FS_MAGIC)
		return;
	text = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	bpf_probe_read_kernel_str(name->text, sizeof(name->text), text);
	if (name->words[0] != wanted.words[0] || name->words[1] != wanted.words[1])
		data = NULL;
	name->words[0] = name->words[1] = 0;
	if (!data || !bpf_core_type_exists(struct vfio_device))
		return;
	if (bpf_core_type_exists(struct vfio_device_file))
		data = BPF_CORE_READ((struct vfio_device_file *)data, device);
	text = BPF_CORE_READ((struct vfio_device *)data, dev, kobj.name);
	bpf_probe_read_kernel_str(name->text, sizeof(name->text), text);
}

static long try_slot(__u32 i, struct vfio_search *s)
{
	struct knpu_slot *slot = bpf_map_lookup_elem(&slots, &i);
	const __u64 *address = slot ? (const __u64 *)slot->address : NULL;

	if (!address || !address[0])	/* they are given out in order */
		return 1;
	if (address[0] != s->name.words[0] || address[1] != s->name.words[1])
		return 0;
	s->slot1 = i + 1;
	return 1;
}

/* All such calls are of kind other: a file from a group knows no call that makes contexts. */
static __noinline int count_vfio(struct file *file)
{
	struct vfio_search s = {};
	__u32 index = 0;

	read_vfio_name(file, &s.name);
	if (s.name.words[0])
		bpf_loop(KNPU_DEVICE_SLOTS - 1, try_slot, &s, 0);
	if (s.slot1)
		count_call(bounded_slot(s.slot1 - 1), KNPU_KINDS - 1, &index);
	return 0;
}

#endif
