// SPDX-License-Identifier: Apache-2.0
// Stand-in for libnvidia-ml.so.1. The names and codes are those of NVIDIA's nvml.h. NVML never opens nvidia-uvm.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_UNKNOWN = 999,
};

static int initialised;
static char loaded_version[64];

int nvmlInit_v2(void)
{
    if (module_version(loaded_version, sizeof loaded_version) != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    switch (use_control_node()) {
    case 0:
        break;
    case EPERM: // the device cgroup
        return NVML_ERROR_UNKNOWN;
    case EACCES: // file mode, or a nodev mount
        return NVML_ERROR_NO_PERMISSION;
    default: // absent, stale or no device at all
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (strcmp(loaded_version, DRIVER_VERSION) != 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    initialised = 1;
    return NVML_SUCCESS;
}

int nvmlInit(void)
{
    return nvmlInit_v2();
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

int nvmlShutdown(void)
{
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    initialised = 0;
    return NVML_SUCCESS;
}

// Only GPUs whose node opens count; none at all is still success (measured).
int nvmlDeviceGetCount_v2(unsigned *count)
{
    struct gpu gpus[MAX_GPUS];
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    int found = list_gpus(gpus, MAX_GPUS);
    *count = 0;
    for (int index = 0; index < found; index++)
        if (use_gpu_node(gpus[index].minor) == 0)
            ++*count;
    return NVML_SUCCESS;
}

// A handle is the place of a GPU in list_gpus, plus one.
struct memory {
    unsigned long long total, free, used;
};
struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

static int gpu_of(void *handle, struct gpu *wanted)
{
    struct gpu gpus[MAX_GPUS];
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    size_t place = (size_t)handle;
    if (place < 1 || place > (size_t)list_gpus(gpus, MAX_GPUS))
        return NVML_ERROR_INVALID_ARGUMENT;
    *wanted = gpus[place - 1];
    return NVML_SUCCESS;
}

static int text_out(int code, const char *text, char *out, unsigned room)
{
    if (code != NVML_SUCCESS)
        return code;
    if (strlen(text) >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    struct gpu gpus[MAX_GPUS];
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    int found = list_gpus(gpus, MAX_GPUS);
    for (int place = 0; place < found; place++)
        if (use_gpu_node(gpus[place].minor) == 0 && index-- == 0) {
            *handle = (void *)(size_t)(place + 1);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned room)
{
    struct gpu gpu;
    int code = gpu_of(handle, &gpu);
    return text_out(code, gpu.name, out, room);
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned room)
{
    struct gpu gpu;
    int code = gpu_of(handle, &gpu);
    return text_out(code, gpu.uuid, out, room);
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *out)
{
    struct gpu gpu;
    int code = gpu_of(handle, &gpu);
    if (code != NVML_SUCCESS)
        return code;
    memset(out, 0, sizeof *out);
    if (sscanf(gpu.bus, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return NVML_ERROR_UNKNOWN;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0x1f);
    snprintf(out->text, sizeof out->text, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0x1f);
    return NVML_SUCCESS;
}

// Nothing ever computes on a GPU that is not there, so nothing of its memory is in use.
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out)
{
    struct gpu gpu;
    int code = gpu_of(handle, &gpu);
    if (code == NVML_SUCCESS)
        *out = (struct memory){.total = 96ULL << 30, .free = 96ULL << 30, .used = 0};
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *rows)
{
    struct gpu gpu;
    (void)rows;
    *count = 0;
    return gpu_of(handle, &gpu);
}

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    if (strlen(loaded_version) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    snprintf(text, length, "%s", loaded_version);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}
