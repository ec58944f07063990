// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a tool sees of NVIDIA's kernel module, without a GPU: character major 195, a dynamic one for the capabilities,
 * /proc/driver/nvidia, and a PCI driver that binds. As with the real one no device node is made here: that is
 * nvidia-modprobe's work. A node can be opened and nothing more.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#define MAJOR_NUMBER 195
#define CONTROL_MINOR 255
#define MODESET_MINOR 254
#define MAX_GPUS 32

static char *version = DRIVER_VERSION;
static int ctl_errno, open_errno;
static unsigned int sick;
module_param(version, charp, 0644);
MODULE_PARM_DESC(version, "what /proc/driver/nvidia/version says");
module_param(ctl_errno, int, 0644);
MODULE_PARM_DESC(ctl_errno, "errno with which nvidiactl refuses to open; 0: opens");
module_param(open_errno, int, 0644);
MODULE_PARM_DESC(open_errno, "errno with which nvidiaN refuses to open; 0: opens");
module_param(sick, uint, 0644);
MODULE_PARM_DESC(sick, "mask of GPUs whose node answers EIO");

static struct pci_dev *bound[MAX_GPUS];
static struct proc_dir_entry *information[MAX_GPUS];
static DEFINE_MUTEX(bound_lock);
static struct proc_dir_entry *folder, *gpu_folder;
static struct cdev nodes;
static dev_t capabilities;

/* nvidia-uvm links to this, so that it cannot outlive the driver, as in reality. */
bool nvidia_has_gpu(unsigned int minor)
{
	bool there;

	mutex_lock(&bound_lock);
	there = minor < MAX_GPUS && bound[minor];
	mutex_unlock(&bound_lock);
	return there;
}
EXPORT_SYMBOL_GPL(nvidia_has_gpu);

static int node_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);

	if (minor == CONTROL_MINOR)
		return -ctl_errno;
	if (minor == MODESET_MINOR)
		return 0;
	if (!nvidia_has_gpu(minor))
		return -ENODEV;
	return sick & BIT(minor) ? -EIO : -open_errno;
}

static const struct file_operations node_operations = { .owner = THIS_MODULE, .open = node_open };

static int version_show(struct seq_file *m, void *unused)
{
	seq_printf(m, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (lab)\n", version);
	seq_puts(m, "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n");
	return 0;
}

static int params_show(struct seq_file *m, void *unused)
{
	seq_puts(m, "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	return 0;
}

static int information_show(struct seq_file *m, void *unused)
{
	unsigned long minor = (unsigned long)m->private;

	seq_puts(m, "Model: \t\t NVIDIA RTX PRO 6000 Blackwell Server Edition\n");
	seq_printf(m, "IRQ:   \t\t 0\nGPU UUID: \t GPU-00000000-0000-4000-8000-%012lu\n", minor);
	seq_puts(m, "Video BIOS: \t 98.02.55.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n");
	mutex_lock(&bound_lock);
	seq_printf(m, "Bus Location: \t %s\n", bound[minor] ? pci_name(bound[minor]) : "");
	mutex_unlock(&bound_lock);
	seq_printf(m, "Device Minor: \t %lu\nGPU Firmware: \t %s\nGPU Excluded:\t No\n", minor, version);
	return 0;
}

static int capability_show(struct seq_file *m, void *minor)
{
	/* 1 is mig/config, for root alone; 2 is mig/monitor, for anyone to read */
	seq_printf(m, "DeviceFileMinor: %lu\nDeviceFileMode: %d\nDeviceFileModify: 1\n", (unsigned long)m->private,
		   (unsigned long)m->private == 1 ? 0400 : 0444);
	return 0;
}

static int gpu_probe(struct pci_dev *dev, const struct pci_device_id *id)
{
	unsigned long minor;
	struct proc_dir_entry *entry;

	mutex_lock(&bound_lock);
	for (minor = 0; minor < MAX_GPUS && bound[minor]; minor++)
		;
	if (minor < MAX_GPUS)
		bound[minor] = dev;
	mutex_unlock(&bound_lock);
	if (minor == MAX_GPUS)
		return -ENOSPC;
	pci_set_drvdata(dev, (void *)minor);
	entry = proc_mkdir(pci_name(dev), gpu_folder);
	if (entry)
		proc_create_single_data("information", 0444, entry, information_show, (void *)minor);
	information[minor] = entry;
	return 0;
}

static void gpu_remove(struct pci_dev *dev)
{
	unsigned long minor = (unsigned long)pci_get_drvdata(dev);

	proc_remove(information[minor]);
	mutex_lock(&bound_lock);
	bound[minor] = NULL;
	mutex_unlock(&bound_lock);
}

static const struct pci_device_id gpu_ids[] = {
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_VGA << 8, .class_mask = ~0 },
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_3D << 8, .class_mask = ~0 },
	{ }
};
MODULE_DEVICE_TABLE(pci, gpu_ids);

static struct pci_driver gpu_driver = { .name = "nvidia", .id_table = gpu_ids, .probe = gpu_probe, .remove = gpu_remove };

static int make_proc(void)
{
	struct proc_dir_entry *caps, *mig;

	folder = proc_mkdir("driver/nvidia", NULL);
	if (!folder)
		return -ENOMEM;
	gpu_folder = proc_mkdir("gpus", folder);
	caps = proc_mkdir("capabilities", folder);
	mig = caps ? proc_mkdir("mig", caps) : NULL;
	if (gpu_folder && mig && proc_create_single("version", 0444, folder, version_show) &&
	    proc_create_single("params", 0444, folder, params_show) &&
	    proc_create_single_data("config", 0444, mig, capability_show, (void *)1) &&
	    proc_create_single_data("monitor", 0444, mig, capability_show, (void *)2))
		return 0;
	proc_remove(folder);
	return -ENOMEM;
}

/* Three names on one major, as drivers since 2024 show it in /proc/devices. */
static const struct { unsigned int first, count; const char *name; } regions[] = {
	{ 0, MODESET_MINOR, "nvidia" }, { MODESET_MINOR, 1, "nvidia-modeset" }, { CONTROL_MINOR, 1, "nvidiactl" },
};

static void release_regions(int count)
{
	while (count--)
		unregister_chrdev_region(MKDEV(MAJOR_NUMBER, regions[count].first), regions[count].count);
}

static int __init nvidia_init(void)
{
	int i, failed = 0;

	for (i = 0; i < ARRAY_SIZE(regions); i++) {
		failed = register_chrdev_region(MKDEV(MAJOR_NUMBER, regions[i].first), regions[i].count, regions[i].name);
		if (failed)
			goto regions_out;
	}
	failed = alloc_chrdev_region(&capabilities, 0, 512, "nvidia-caps");
	if (failed)
		goto regions_out;
	cdev_init(&nodes, &node_operations);
	failed = cdev_add(&nodes, MKDEV(MAJOR_NUMBER, 0), 256);
	if (failed)
		goto capabilities_out;
	failed = make_proc();
	if (failed)
		goto nodes_out;
	failed = pci_register_driver(&gpu_driver);
	if (!failed)
		return 0;
	proc_remove(folder);
nodes_out:
	cdev_del(&nodes);
capabilities_out:
	unregister_chrdev_region(capabilities, 512);
regions_out:
	release_regions(i);
	return failed;
}

static void __exit nvidia_exit(void)
{
	pci_unregister_driver(&gpu_driver);
	proc_remove(folder);
	cdev_del(&nodes);
	unregister_chrdev_region(capabilities, 512);
	release_regions(ARRAY_SIZE(regions));
}

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_DESCRIPTION("Stand-in for NVIDIA's kernel module, for hosttune's lab");
MODULE_VERSION(DRIVER_VERSION);
MODULE_LICENSE("GPL");
