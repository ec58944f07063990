// SPDX-License-Identifier: Apache-2.0
// What both stand-in libraries know of the driver: its version, its nodes, its GPUs.
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <stddef.h>

#define MAX_GPUS 32
#define UVM_ABSENT (-1)

struct gpu {
    int minor;
    char bus[32]; // 0000:11:00.0
    char name[96];
    char uuid[64];
};

// Version of the loaded kernel module from /proc/driver/nvidia/version; 0, or -1 when no module is loaded.
int module_version(char *text, size_t size);

// The GPUs of /proc/driver/nvidia/gpus, by minor; returns how many.
int list_gpus(struct gpu *gpus, int room);

// Major of nvidia-uvm by /proc/devices, or UVM_ABSENT.
int uvm_major(void);

// Do to a node what NVIDIA's libraries do before they open it: a wrong one is removed, a missing one made, a wrong mode
// reset, each as far as the kernel lets the caller.
void repair_node(const char *path, unsigned major, unsigned minor);

// Open a node read-write and close it: 0 if it is the wanted device and it opened, else the errno.
int open_node(const char *path, unsigned major, unsigned minor);

// Both steps for one of the driver's own nodes.
int use_control_node(void);
int use_gpu_node(int minor);

#endif
