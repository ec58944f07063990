// SPDX-License-Identifier: Apache-2.0
// Stand-in for libnvidia-ml.so.1. The names and codes are those of NVIDIA's nvml.h. NVML never opens nvidia-uvm.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
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
