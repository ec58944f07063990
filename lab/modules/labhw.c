// SPDX-License-Identifier: GPL-2.0-only
/*
 * labhw: GPUs of a two-socket server, as far as PCI configuration space goes. Each GPU is 10de:2bb5 behind a root port of its
 * own, at buses 10/11, 20/21 ... 80/81; the first half is on NUMA node 0, the rest on node 1. There are no BARs, interrupts
 * or IOMMU groups. Registers have a value and a write mask as the PCI Express specification gives them, so that a write which
 * is too wide does the damage that it does on hardware. /proc/labhw_writes says who wrote what.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>

#define MAX_GPUS 8
#define CAP 0x60		/* the PCI Express capability of both functions */
#define LOG_SIZE 4096

static unsigned int ngpu = MAX_GPUS, device = 0x2bb5, mrrs = 512, mps = 256, speed = 5, width = 16, gone;
static unsigned int cur_speed[MAX_GPUS], cur_width[MAX_GPUS];
module_param(ngpu, uint, 0444);
MODULE_PARM_DESC(ngpu, "number of GPUs, 1 to 8");
module_param(device, uint, 0444);
MODULE_PARM_DESC(device, "PCI device id");
module_param(mrrs, uint, 0444);
MODULE_PARM_DESC(mrrs, "MaxReadReq at load, bytes");
module_param(mps, uint, 0444);
MODULE_PARM_DESC(mps, "MaxPayload at load, bytes");
module_param(speed, uint, 0444);
MODULE_PARM_DESC(speed, "PCI Express generation that the links can do");
module_param(width, uint, 0444);
MODULE_PARM_DESC(width, "lanes that the links have");
module_param_array(cur_speed, uint, NULL, 0644);
MODULE_PARM_DESC(cur_speed, "generation that each link runs at now; 0: all it can");
module_param_array(cur_width, uint, NULL, 0644);
MODULE_PARM_DESC(cur_width, "lanes that each link runs with now; 0: all it has");
module_param(gone, uint, 0644);
MODULE_PARM_DESC(gone, "mask of GPUs that have fallen off the bus: every read gives ones");

struct function {
	u8 value[4096];
	u8 mask[4096];		/* bits that a write changes */
};

struct gpu {
	struct pci_sysdata sysdata;
	struct pci_bus *root;
	unsigned int index, number;	/* number: of the root port's bus */
	struct function port, card;
};

struct write {
	u64 serial, nanoseconds;
	u8 bus, devfn;
	u16 where;
	int size;
	u32 old, value;
	pid_t pid;
	char comm[TASK_COMM_LEN];
};

static struct gpu *gpus[MAX_GPUS];
static struct write log[LOG_SIZE];
static u64 written;
static DEFINE_RAW_SPINLOCK(log_lock);

static u32 get(const u8 *at, int size)
{
	return size == 1 ? at[0] : size == 2 ? at[0] | at[1] << 8 : at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24;
}

static void put(u8 *at, int size, u32 value)
{
	while (size--) {
		*at++ = value;
		value >>= 8;
	}
}

static void reg(struct function *f, int where, int size, u32 value, u32 mask)
{
	put(f->value + where, size, value);
	put(f->mask + where, size, mask);
}

static struct function *function_at(struct pci_bus *bus, unsigned int devfn, struct gpu **owner)
{
	struct gpu *gpu = container_of(bus->sysdata, struct gpu, sysdata);

	*owner = gpu;
	if (bus->number == gpu->number)
		return devfn == PCI_DEVFN(1, 0) ? &gpu->port : NULL;
	return devfn == 0 ? &gpu->card : NULL;
}

static bool off_the_bus(struct gpu *gpu, struct function *f)
{
	return f == &gpu->card && (READ_ONCE(gone) & BIT(gpu->index));
}

/* Both ends of a link show the same state. It is made at each read: the parameters change at run time. */
static u16 link_status(struct gpu *gpu)
{
	u32 s = READ_ONCE(cur_speed[gpu->index]) ?: speed, w = READ_ONCE(cur_width[gpu->index]) ?: width;

	return s | w << 4 | PCI_EXP_LNKSTA_SLC;
}

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct gpu *gpu;
	struct function *f = function_at(bus, devfn, &gpu);

	*value = ~0;
	if (!f || where + size > (int)sizeof(f->value))
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (off_the_bus(gpu, f))
		return PCIBIOS_SUCCESSFUL;
	put(f->value + CAP + PCI_EXP_LNKSTA, 2, link_status(gpu));
	*value = get(f->value + where, size);
	return PCIBIOS_SUCCESSFUL;
}

static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	struct gpu *gpu;
	struct function *f = function_at(bus, devfn, &gpu);
	struct write *entry;
	unsigned long flags;
	u32 old;
	int i;

	if (!f || where + size > (int)sizeof(f->value))
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (off_the_bus(gpu, f))
		return PCIBIOS_SUCCESSFUL;
	old = get(f->value + where, size);
	for (i = 0; i < size; i++) {
		u8 mask = f->mask[where + i];

		f->value[where + i] = (f->value[where + i] & ~mask) | ((value >> (8 * i)) & mask);
	}
	raw_spin_lock_irqsave(&log_lock, flags);
	entry = &log[written % LOG_SIZE];
	*entry = (struct write){ .serial = ++written, .nanoseconds = ktime_get_ns(), .bus = bus->number, .devfn = devfn,
				 .where = where, .size = size, .old = old, .value = value, .pid = current->pid };
	strscpy(entry->comm, current->comm, sizeof(entry->comm));
	raw_spin_unlock_irqrestore(&log_lock, flags);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops config_ops = { .read = config_read, .write = config_write };

static int writes_show(struct seq_file *m, void *unused)
{
	u64 i = written > LOG_SIZE ? written - LOG_SIZE : 0;

	for (; i < written; i++) {
		struct write e;
		unsigned long flags;

		raw_spin_lock_irqsave(&log_lock, flags);
		e = log[i % LOG_SIZE];
		raw_spin_unlock_irqrestore(&log_lock, flags);
		seq_printf(m, "%llu %llu %02x:%02x.%x reg=%03x size=%d val=%0*x old=%0*x pid=%d comm=%s\n", e.serial,
			   e.nanoseconds, e.bus, PCI_SLOT(e.devfn), PCI_FUNC(e.devfn), e.where, e.size, 2 * e.size, e.value,
			   2 * e.size, e.old, e.pid, e.comm);
	}
	return 0;
}

/* 128 is code 0, 4096 is code 5 */
static u32 size_code(unsigned int bytes)
{
	return ilog2(bytes) - 7;
}

/* What a root port and an endpoint have in common: identity, command and status, PCI Express, an empty AER capability. */
static void fill(struct function *f, u32 id, u32 class, u8 header, u16 type, u32 devctl)
{
	reg(f, PCI_VENDOR_ID, 4, id, 0);
	reg(f, PCI_COMMAND, 2, 0, 0x0547);
	reg(f, PCI_STATUS, 2, PCI_STATUS_CAP_LIST, 0);
	reg(f, PCI_CLASS_REVISION, 4, class, 0);
	reg(f, PCI_HEADER_TYPE, 1, header, 0);
	reg(f, PCI_CAPABILITY_LIST, 1, CAP, 0);
	reg(f, PCI_INTERRUPT_LINE, 1, 0, 0xff);
	reg(f, CAP, 4, PCI_CAP_ID_EXP | (u32)(2 | type) << 16, 0);
	reg(f, CAP + PCI_EXP_DEVCAP, 4, 0x10008022, 0);		/* payload 512, extended tags, role-based errors, FLR */
	reg(f, CAP + PCI_EXP_DEVCTL, 2, devctl, 0x7fff);
	reg(f, CAP + PCI_EXP_LNKCAP, 4, speed | width << 4, 0);
	reg(f, CAP + PCI_EXP_LNKCTL, 2, 0, 0x03fb);
	reg(f, CAP + PCI_EXP_DEVCAP2, 4, 0, 0);
	reg(f, CAP + PCI_EXP_DEVCTL2, 2, 0, 0xffff);
	reg(f, CAP + PCI_EXP_LNKCAP2, 4, (2 << speed) - 2, 0);
	reg(f, CAP + PCI_EXP_LNKCTL2, 2, speed, 0xffff);
	reg(f, 0x100, 4, PCI_EXT_CAP_ID_ERR | 2 << 16, 0);
}

static void fill_port(struct gpu *gpu)
{
	struct function *f = &gpu->port;

	fill(f, 0x14ab1022, 0x06040000, PCI_HEADER_TYPE_BRIDGE, PCI_EXP_TYPE_ROOT_PORT << 4 | PCI_EXP_FLAGS_SLOT,
	     size_code(512) << 12 | size_code(mps) << 5 | 0x091f);
	reg(f, PCI_PRIMARY_BUS, 1, gpu->number, 0xff);
	reg(f, PCI_SECONDARY_BUS, 1, gpu->number + 1, 0xff);
	reg(f, PCI_SUBORDINATE_BUS, 1, gpu->number + 1, 0xff);
	/* Every window closed (base above limit): an open one at 0 would be claimed in vain and the port not enabled. */
	reg(f, PCI_IO_BASE, 2, 0x00f0, 0);
	reg(f, PCI_MEMORY_BASE, 4, 0x0000fff0, 0);
	reg(f, PCI_PREF_MEMORY_BASE, 4, 0x0001fff1, 0);
	reg(f, PCI_PREF_BASE_UPPER32, 4, ~0, 0);
	reg(f, PCI_PREF_LIMIT_UPPER32, 4, 0, 0);
}

static void fill_card(struct gpu *gpu)
{
	struct function *f = &gpu->card;

	fill(f, device << 16 | 0x10de, 0x030200a1, PCI_HEADER_TYPE_NORMAL, PCI_EXP_TYPE_ENDPOINT << 4,
	     size_code(mrrs) << 12 | size_code(mps) << 5 | 0x091f);
	reg(f, PCI_SUBSYSTEM_VENDOR_ID, 4, 0x204e10de, 0);
	/* Already on, or the kernel's quirk for NVIDIA's audio function writes it and scans anew. */
	reg(f, 0x488, 4, BIT(25), 0);
}

static int add_gpu(unsigned int index)
{
	static struct resource buses[MAX_GPUS];
	LIST_HEAD(windows);
	struct gpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);

	if (!gpu)
		return -ENOMEM;
	gpu->index = index;
	gpu->number = (index + 1) * 0x10;
	gpu->sysdata.node = index < (ngpu + 1) / 2 || num_online_nodes() < 2 ? 0 : 1;
	fill_port(gpu);
	fill_card(gpu);
	buses[index] = (struct resource){ .name = "labhw", .start = gpu->number, .end = gpu->number + 1, .flags = IORESOURCE_BUS };
	pci_add_resource(&windows, &buses[index]);
	gpu->root = pci_scan_root_bus(NULL, gpu->number, &config_ops, &gpu->sysdata, &windows);
	if (!gpu->root) {
		pci_free_resource_list(&windows);
		kfree(gpu);
		return -ENODEV;
	}
	pci_bus_add_devices(gpu->root);
	gpus[index] = gpu;
	return 0;
}

static void remove_all(void)
{
	unsigned int i;

	pci_lock_rescan_remove();
	for (i = 0; i < MAX_GPUS; i++) {
		if (!gpus[i])
			continue;
		pci_stop_root_bus(gpus[i]->root);
		pci_remove_root_bus(gpus[i]->root);
		kfree(gpus[i]);
		gpus[i] = NULL;
	}
	pci_unlock_rescan_remove();
}

static bool size_is_valid(unsigned int bytes)
{
	return is_power_of_2(bytes) && bytes >= 128 && bytes <= 4096;
}

static int __init labhw_init(void)
{
	unsigned int i;
	int failed = 0;

	if (!ngpu || ngpu > MAX_GPUS || !size_is_valid(mrrs) || !size_is_valid(mps) || speed < 1 || speed > 6 || width < 1 || width > 32)
		return -EINVAL;
	if (!proc_create_single("labhw_writes", 0444, NULL, writes_show))
		return -ENOMEM;
	pci_lock_rescan_remove();
	for (i = 0; i < ngpu && !failed; i++)
		failed = add_gpu(i);
	pci_unlock_rescan_remove();
	if (failed) {
		remove_all();
		remove_proc_entry("labhw_writes", NULL);
	}
	return failed;
}

static void __exit labhw_exit(void)
{
	remove_all();
	remove_proc_entry("labhw_writes", NULL);
}

module_init(labhw_init);
module_exit(labhw_exit);
MODULE_DESCRIPTION("PCI configuration space of a multi-GPU server, for hosttune's lab");
MODULE_LICENSE("GPL");
