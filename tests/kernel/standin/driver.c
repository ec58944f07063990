// SPDX-License-Identifier: Apache-2.0
// Only what a library on a machine with a GPU was seen to do is played here; see README.md in this folder.
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195
#define CONTROL_MINOR 255

// Straight to the kernel: the wrappers of these two got new symbol versions in glibc 2.33, and a library built on a new
// machine must load in an old container.
static int status_of(const char *path, struct stat *seen)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, seen, AT_SYMLINK_NOFOLLOW);
}

static int make_node(const char *path, unsigned major, unsigned minor)
{
    return (int)syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0666, (unsigned)makedev(major, minor));
}

int module_version(char *text, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    if (file == NULL)
        return -1;
    int found = -1;
    if (fgets(line, sizeof line, file) != NULL) {
        for (char *rest = line, *word; (word = strtok_r(rest, " \t\n", &rest)) != NULL && found != 0;) {
            // the one word made of digits and dots, as in 580.159.04
            if (isdigit((unsigned char)word[0]) && strchr(word, '.') != NULL && strspn(word, "0123456789.") == strlen(word)) {
                snprintf(text, size, "%s", word);
                found = 0;
            }
        }
    }
    fclose(file);
    return found;
}

static int by_minor(const void *left, const void *right)
{
    return ((const struct gpu *)left)->minor - ((const struct gpu *)right)->minor;
}

int list_gpus(struct gpu *gpus, int room)
{
    int count = 0;
    DIR *folder = opendir("/proc/driver/nvidia/gpus");
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL && count < room;) {
        char path[512], line[256];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL)
            continue;
        struct gpu seen = {.minor = -1};
        snprintf(seen.bus, sizeof seen.bus, "%s", entry->d_name);
        while (fgets(line, sizeof line, file) != NULL) {
            char *value = strchr(line, ':');
            if (value == NULL)
                continue;
            value += 1 + strspn(value + 1, " \t");
            if (strncmp(line, "Device Minor", 12) == 0)
                seen.minor = atoi(value);
            else if (strncmp(line, "Model", 5) == 0)
                snprintf(seen.name, sizeof seen.name, "%.*s", (int)strcspn(value, "\n"), value);
            else if (strncmp(line, "GPU UUID", 8) == 0)
                snprintf(seen.uuid, sizeof seen.uuid, "%.*s", (int)strcspn(value, " \t\n"), value);
        }
        fclose(file);
        if (seen.minor >= 0)
            gpus[count++] = seen;
    }
    closedir(folder);
    qsort(gpus, (size_t)count, sizeof *gpus, by_minor);
    return count;
}

int uvm_major(void)
{
    char line[128];
    int major = UVM_ABSENT;
    FILE *file = fopen("/proc/devices", "re");
    if (file == NULL)
        return UVM_ABSENT;
    while (fgets(line, sizeof line, file) != NULL && strncmp(line, "Block", 5) != 0) {
        char *name = line + strspn(line, " ");
        char *end = name + strspn(name, "0123456789");
        if (end != name && strcmp(end, " nvidia-uvm\n") == 0)
            major = atoi(name);
    }
    fclose(file);
    return major;
}

static int is_device(const struct stat *seen, unsigned major, unsigned minor)
{
    return S_ISCHR(seen->st_mode) && seen->st_rdev == makedev(major, minor);
}

void repair_node(const char *path, unsigned major, unsigned minor)
{
    struct stat seen;
    int present = status_of(path, &seen) == 0;
    if (present && !is_device(&seen, major, minor)) {
        if (unlink(path) != 0)
            return; // read-only /dev (EROFS), a bind mount (EBUSY), no right: the evidence stays
        present = 0;
    }
    // Without CAP_MKNOD the node that was just removed is now missing: the next open says ENOENT (measured).
    if (!present && make_node(path, major, minor) != 0)
        return;
    if (!present || (seen.st_mode & 07777) != 0666)
        if (chmod(path, 0666) != 0)
            return;
}

int open_node(const char *path, unsigned major, unsigned minor)
{
    struct stat seen;
    int node = open(path, O_RDWR | O_CLOEXEC);
    int error = node < 0 ? errno : 0;
    if (node >= 0)
        close(node);
    if (status_of(path, &seen) != 0)
        return error != 0 ? error : errno;
    if (!is_device(&seen, major, minor))
        return error != 0 ? error : ENODEV; // a regular file opens, but it is no driver
    // On a test machine no driver owns these majors, so a node that everything allows answers ENXIO. Set this switch there,
    // and only there: a right node then counts as working, and every real refusal comes first and keeps its errno.
    const char *allowed = getenv("STANDIN_ENXIO_IS_OK");
    if (error == ENXIO && allowed != NULL && strcmp(allowed, "1") == 0)
        return 0;
    return error;
}

int use_control_node(void)
{
    repair_node("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR);
    return open_node("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR);
}

int use_gpu_node(int minor)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%d", minor);
    repair_node(path, NVIDIA_MAJOR, (unsigned)minor);
    return open_node(path, NVIDIA_MAJOR, (unsigned)minor);
}
