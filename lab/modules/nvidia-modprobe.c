// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stand-in for NVIDIA's nvidia-modprobe with the behaviour that matters to who prepares nodes (read in its public source):
 *
 *  - the first of -l, -s, -u, -a wins and leaves the rest undone; without any of them the GPU nodes are meant. Only -m and -f
 *    go with all of them. So `-u -m -s -l -c 0` makes no uvm node.
 *  - -c=N names minors: of GPU nodes (255 is nvidiactl), or with -u the base minor of uvm. -u alone loads and makes nothing.
 *  - majors come from /proc/devices by exact name; a node that is not the right device is removed and made anew.
 *  - nothing is printed; the exit code is 0 or 1.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_MINORS 256

static int minors[MAX_MINORS], minor_count;

static bool loaded(const char *module)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", module);
	for (char *at = path; *at; at++)
		if (*at == '-')
			*at = '_';
	return access(path, F_OK) == 0;
}

static bool load(const char *module)
{
	char *argv[] = { "modprobe", "-q", (char *)module, NULL }, *env[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };
	int status;
	pid_t child;

	if (loaded(module))
		return true;
	/* The real program is installed set-user-id root; modprobe wants the real id too. */
	if (geteuid() != 0 || (child = fork()) < 0)
		return false;
	if (child == 0) {
		if (setgid(0) != 0 || setuid(0) != 0)
			_exit(127);
		execve("/sbin/modprobe", argv, env);
		_exit(127);
	}
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int major_of(const char *name)
{
	FILE *file = fopen("/proc/devices", "re");
	char line[128], seen[100];
	int major, found = -1;

	if (!file)
		return -1;
	while (found < 0 && fgets(line, sizeof(line), file) && strncmp(line, "Block devices", 13) != 0)
		if (sscanf(line, "%d %99s", &major, seen) == 2 && strcmp(seen, name) == 0)
			found = major;
	fclose(file);
	return found;
}

/* The driver may be told not to touch nodes (NVreg_ModifyDeviceFiles=0). */
static void node_policy(bool *modify, unsigned *mode, unsigned *uid, unsigned *gid)
{
	FILE *file = fopen("/proc/driver/nvidia/params", "re");
	char line[128];
	unsigned value;

	*modify = true, *mode = 0666, *uid = 0, *gid = 0;
	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "ModifyDeviceFiles: %u", &value) == 1)
			*modify = value != 0;
		else if (sscanf(line, "DeviceFileMode: %u", &value) == 1)
			*mode = value;
		else if (sscanf(line, "DeviceFileUID: %u", &value) == 1)
			*uid = value;
		else if (sscanf(line, "DeviceFileGID: %u", &value) == 1)
			*gid = value;
	}
	fclose(file);
}

static bool make_node(const char *path, int major, int minor, int forced_mode)
{
	struct stat seen;
	bool modify;
	unsigned mode, uid, gid;
	dev_t number = makedev(major, minor);

	if (major < 0)
		return false;
	node_policy(&modify, &mode, &uid, &gid);
	if (!modify)
		return true;
	if (forced_mode >= 0)
		mode = forced_mode;
	if (lstat(path, &seen) == 0) {
		bool right = S_ISCHR(seen.st_mode) && seen.st_rdev == number;

		if (right && (seen.st_mode & 0777) == mode && seen.st_uid == uid && seen.st_gid == gid)
			return true;
		if (!right && unlink(path) != 0)
			return false;
	}
	if (mknod(path, S_IFCHR | mode, number) != 0 && errno != EEXIST)
		return false;
	return chmod(path, mode) == 0 && chown(path, uid, gid) == 0;
}

static bool gpu_nodes(void)
{
	bool good = load("nvidia");

	for (int i = 0; i < minor_count && good; i++) {
		char path[64] = "/dev/nvidiactl";

		if (minors[i] != 255)
			snprintf(path, sizeof(path), "/dev/nvidia%d", minors[i]);
		good = make_node(path, 195, minors[i], -1);
	}
	return good;
}

static bool uvm_nodes(void)
{
	int base = minor_count ? minors[0] : 0;

	if (!load("nvidia-uvm"))
		return false;
	if (!minor_count)
		return true;
	return make_node("/dev/nvidia-uvm", major_of("nvidia-uvm"), base, -1) &&
	       make_node("/dev/nvidia-uvm-tools", major_of("nvidia-uvm"), base + 1, -1);
}

static bool capability_node(const char *description)
{
	FILE *file = fopen(description, "re");
	char line[128], path[64];
	int minor = -1, mode = -1, modify = 1;

	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		sscanf(line, "DeviceFileMinor: %d", &minor);
		sscanf(line, "DeviceFileMode: %d", &mode);
		sscanf(line, "DeviceFileModify: %d", &modify);
	}
	fclose(file);
	if (minor < 0 || mode < 0)
		return false;
	if (!modify)
		return true;
	if (mkdir("/dev/nvidia-caps", 0755) != 0 && errno != EEXIST)
		return false;
	snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%d", minor);
	return make_node(path, major_of("nvidia-caps"), minor, mode);
}

int main(int argc, char **argv)
{
	bool uvm = false, modeset = false, nvlink = false, nvswitch = false, imex = false, good;
	const char *capability = NULL;
	int option;

	while ((option = getopt(argc, argv, "c:f:umlsa")) != -1) {
		const char *value = optarg && *optarg == '=' ? optarg + 1 : optarg;

		switch (option) {
		case 'c':
			if (minor_count < MAX_MINORS)
				minors[minor_count++] = atoi(value);
			break;
		case 'f': capability = value; break;
		case 'u': uvm = true; break;
		case 'm': modeset = true; break;
		case 'l': nvlink = true; break;
		case 's': nvswitch = true; break;
		case 'a': imex = true; break;
		default: return 1;
		}
	}
	umask(0);
	if (nvlink || nvswitch || imex)
		good = true;	/* this machine has no such devices */
	else
		good = uvm ? uvm_nodes() : gpu_nodes();
	if (modeset)
		good = load("nvidia") && make_node("/dev/nvidia-modeset", 195, 254, -1) && good;
	if (capability)
		good = capability_node(capability) && good;
	return good ? 0 : 1;
}
