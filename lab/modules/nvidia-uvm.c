// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stand-in for nvidia-uvm. All that counts here is its major number: the kernel gives any free one, so that it changes with
 * the order in which modules load. major= asks for one, burn= takes some away first, as other drivers do on a full server.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>

#define MAX_BURNT 128

bool nvidia_has_gpu(unsigned int minor);

static unsigned int major, burn;
static int open_errno;
module_param(major, uint, 0444);
MODULE_PARM_DESC(major, "character major to register; 0: the kernel's choice");
module_param(burn, uint, 0444);
MODULE_PARM_DESC(burn, "number of dynamic majors to take first");
module_param(open_errno, int, 0644);
MODULE_PARM_DESC(open_errno, "errno with which a node refuses to open; 0: opens");

static dev_t numbers, burnt[MAX_BURNT];
static unsigned int burnt_count;
static struct cdev nodes;

static int node_open(struct inode *inode, struct file *file)
{
	return -open_errno;
}

static const struct file_operations node_operations = { .owner = THIS_MODULE, .open = node_open };

static void release_burnt(void)
{
	while (burnt_count)
		unregister_chrdev_region(burnt[--burnt_count], 1);
}

static int __init uvm_init(void)
{
	int failed = 0;

	if (burn > MAX_BURNT)
		return -EINVAL;
	(void)nvidia_has_gpu(0);
	for (; burnt_count < burn && !failed; burnt_count++)
		failed = alloc_chrdev_region(&burnt[burnt_count], 0, 1, "burnt");
	if (failed) {
		burnt_count--;
		goto out;
	}
	numbers = MKDEV(major, 0);
	failed = major ? register_chrdev_region(numbers, 2, "nvidia-uvm") : alloc_chrdev_region(&numbers, 0, 2, "nvidia-uvm");
	if (failed)
		goto out;
	cdev_init(&nodes, &node_operations);
	failed = cdev_add(&nodes, numbers, 2);
	if (!failed)
		return 0;
	unregister_chrdev_region(numbers, 2);
out:
	release_burnt();
	return failed;
}

static void __exit uvm_exit(void)
{
	cdev_del(&nodes);
	unregister_chrdev_region(numbers, 2);
	release_burnt();
}

module_init(uvm_init);
module_exit(uvm_exit);
MODULE_DESCRIPTION("Stand-in for NVIDIA's unified memory module, for hosttune's lab");
MODULE_VERSION(DRIVER_VERSION);
MODULE_LICENSE("GPL");
