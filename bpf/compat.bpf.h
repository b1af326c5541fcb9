/* SPDX-License-Identifier: GPL-2.0-only */
/* Every difference between kernels and between header releases that the programs must know, with its reason. */
#ifndef KNPU_COMPAT_BPF_H
#define KNPU_COMPAT_BPF_H

/* Map type of cgroup local storage, since 6.2 (commit c4bcfb38a95e); Debian 12's linux/bpf.h does not name it.
 * Can go when the oldest build host has the 6.2 uAPI. */
#define KNPU_MAP_TYPE_CGRP_STORAGE 32

#endif
