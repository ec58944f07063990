// SPDX-License-Identifier: Apache-2.0
// Plays the driver's own open(2) on a machine without one: preloaded into the processes of a test.
//
// The kernel decides first, as on a real host: a device cgroup's EPERM, a mode's EACCES, a missing node's ENOENT all reach
// the caller. Only where everything allowed the open and no driver owns the major (ENXIO) does this open /dev/null in the
// driver's place - for a node under /dev/nvidia* whose number /proc/devices gives to NVIDIA, so that a stale one stays ENXIO.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int raw_open(int dir, const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

static int owned_by_nvidia(unsigned major)
{
    char text[8192];
    int fd = raw_open(AT_FDCWD, "/proc/devices", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = '\0';
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL && strncmp(line, "Block", 5) != 0;) {
        // By hand: sscanf and strtoul get newer symbol versions in glibc 2.38, and this is loaded into older containers.
        char *word = line + strspn(line, " ");
        unsigned number = 0;
        for (; *word >= '0' && *word <= '9'; word++)
            number = number * 10 + (unsigned)(*word - '0');
        if (number == major && strncmp(word, " nvidia", 7) == 0)
            return 1;
    }
    return 0;
}

static int opened(int dir, const char *path, int flags, mode_t mode)
{
    int fd = raw_open(dir, path, flags, mode);
    if (fd >= 0 || errno != ENXIO || strncmp(path, "/dev/nvidia", 11) != 0)
        return fd;
    struct stat seen;
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &seen, 0) == 0 && owned_by_nvidia(major(seen.st_rdev)))
        return raw_open(AT_FDCWD, "/dev/null", O_RDWR | (flags & O_CLOEXEC), 0);
    errno = ENXIO;
    return -1;
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list list; \
        va_start(list, last); \
        mode = (mode_t)va_arg(list, unsigned); \
        va_end(list); \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(dir, path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(dir, path, flags | O_LARGEFILE, mode);
}
