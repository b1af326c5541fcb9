/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The few kernel structs that the programs read, reduced to the members read. Offsets are relocated against the
 * running kernel's BTF (CO-RE), so order and size here mean nothing. All of them are vmlinux types: no module BTF
 * is searched for them.
 */
#ifndef KNPU_CORE_TYPES_H
#define KNPU_CORE_TYPES_H

#include <linux/types.h>

#define S_IFMT 0170000
#define S_IFCHR 0020000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	unsigned long s_magic;
};

struct inode {
	__u16 i_mode;
	__u32 i_rdev;
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
};

struct kernfs_node {
	const char *name;
	__u64 id;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[];	/* since 6.1, commit 7f203bc89eb6: spares the parent chain of kernfs nodes */
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct task_struct {
	int pid;
	int tgid;
	__u64 start_boottime;
	struct css_set *cgroups;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

#pragma clang attribute pop

#endif
