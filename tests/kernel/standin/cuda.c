// SPDX-License-Identifier: Apache-2.0
// Stand-in for libcuda.so.1. The names and codes are those of NVIDIA's cuda.h.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_UNKNOWN = 999,
};

// cuInit fails with an address-space limit of 4 GB and works with one of 20 GB (measured); the true need lies between.
#define ADDRESS_SPACE ((size_t)8 << 30)

static pid_t initialised_by;
static int visible_gpus;

static int is_number(const char *word)
{
    return word[0] != '\0' && strspn(word, "0123456789") == strlen(word);
}

// Index into usable[] that one word of CUDA_VISIBLE_DEVICES names, or -1.
static int named_gpu(const char *word, const struct gpu *usable, int count)
{
    if (is_number(word))
        return atoi(word) < count ? atoi(word) : -1;
    for (int index = 0; index < count; index++)
        if (strncmp(word, "GPU-", 4) == 0 && strncmp(word, usable[index].uuid, strlen(word)) == 0)
            return index;
    return -1;
}

// How many of the usable GPUs CUDA_VISIBLE_DEVICES leaves: the list counts up to its first word that names none.
static int count_visible(const struct gpu *usable, int count)
{
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    if (value == NULL)
        return count;
    char list[1024];
    snprintf(list, sizeof list, "%s", value);
    int visible = 0;
    for (char *rest = list, *word; (word = strsep(&rest, ",")) != NULL; visible++)
        if (named_gpu(word, usable, count) < 0)
            break;
    return visible;
}

int cuInit(unsigned flags)
{
    char version[64];
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (initialised_by != 0)
        return initialised_by == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    void *reserved = mmap(NULL, ADDRESS_SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    munmap(reserved, ADDRESS_SPACE);

    if (module_version(version, sizeof version) != 0 || use_control_node() != 0)
        return CUDA_ERROR_NO_DEVICE;
    if (strcmp(version, DRIVER_VERSION) != 0)
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;

    int uvm = uvm_major();
    if (uvm == UVM_ABSENT)
        return CUDA_ERROR_UNKNOWN;
    repair_node("/dev/nvidia-uvm-tools", (unsigned)uvm, 1); // profilers want it; whether it opens has no effect here
    repair_node("/dev/nvidia-uvm", (unsigned)uvm, 0);
    if (open_node("/dev/nvidia-uvm", (unsigned)uvm, 0) != 0)
        return CUDA_ERROR_UNKNOWN;

    struct gpu gpus[MAX_GPUS], usable[MAX_GPUS];
    int found = list_gpus(gpus, MAX_GPUS), count = 0;
    for (int index = 0; index < found; index++)
        if (use_gpu_node(gpus[index].minor) == 0)
            usable[count++] = gpus[index];
    visible_gpus = count_visible(usable, count);
    if (visible_gpus == 0)
        return CUDA_ERROR_NO_DEVICE;
    initialised_by = getpid();
    return CUDA_SUCCESS;
}

static int ready(void)
{
    return initialised_by == getpid();
}

int cuDeviceGetCount(int *count)
{
    if (!ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = visible_gpus;
    return CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (!ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= visible_gpus)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

// A context can be made on a healthy GPU (measured: 0); nothing stands behind the handle.
int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    static int anchor;
    (void)flags;
    if (!ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= visible_gpus)
        return CUDA_ERROR_INVALID_DEVICE;
    *context = &anchor;
    return CUDA_SUCCESS;
}

int cuCtxDestroy_v2(void *context)
{
    return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    return cuCtxCreate_v2(context, 0, device);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return ready() && device >= 0 && device < visible_gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000; // CUDA 13.0, which driver 580 brings
    return CUDA_SUCCESS;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int find_error(int code, const char **name, const char **text)
{
    for (size_t index = 0; index < sizeof errors / sizeof *errors; index++)
        if (errors[index].code == code) {
            *name = errors[index].name;
            *text = errors[index].text;
            return CUDA_SUCCESS;
        }
    *name = *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

int cuGetErrorName(int code, const char **name)
{
    const char *unused;
    return find_error(code, name, &unused);
}

int cuGetErrorString(int code, const char **text)
{
    const char *unused;
    return find_error(code, &unused, text);
}
