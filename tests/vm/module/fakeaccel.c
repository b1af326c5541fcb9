// SPDX-License-Identifier: GPL-2.0-only
/*
 * fakeaccel: accelerators that do not exist, for tests in guests. Touches no hardware.
 *
 *   pci=DRIVER@ADDRESS      binds a PCI driver of this name to QEMU's pci-testdev at this address
 *   drm=NAME, accel=NAME    a DRM or accel device of driver NAME under a platform device NAME.N.auto bound to NAME;
 *                           /NAME: under a platform device NAME to which no driver is bound;
 *                           NAME@ADDRESS: under that PCI device
 *   chr=NODE:MAJOR:MINOR[:CLASS][@ADDRESS]
 *                           a character device; MAJOR 0: any; CLASS as NODE without one; CLASS -: nothing in sysfs
 *   topology=ID             what /sys/class/kfd has below the character device kfd: the first DRM device is the GPU ID
 *   gpu=MINOR@ADDRESS       /proc/driver/nvidia/gpus/ADDRESS/information, as NVIDIA's driver shows it
 *   slow_nr, slow_ms, err_nr, err_no, engine: below, also in /sys/module/fakeaccel/parameters
 *   cycle_mhz               fdinfo tells cycles of a clock of this speed in place of nanoseconds, as xe's
 *   memory_kib              and that each client has so much memory in vram0, and twice that in all
 *
 * A DRM device of driver nouveau answers its object call (nr 0x47, whatever its type) before drm_ioctl, as nouveau does.
 * Every driver call (nr 0x40 to 0x9f of DRM, all of a character device) answers 0, whatever its argument: one of them
 * can be slow and one can fail. Accel devices need 6.2 and CONFIG_DRM_ACCEL. Unloading takes everything away again.
 */
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/device_cgroup.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>
#include <drm/drm_print.h>

#define SINCE(major, minor) (LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))
#if SINCE(6, 2)
#include <drm/drm_accel.h>
#endif
#define HAVE_ACCEL (SINCE(6, 2) && IS_ENABLED(CONFIG_DRM_ACCEL))

#define MAX_DEVICES 64
#define DRIVER_NRS (DRM_COMMAND_END - DRM_COMMAND_BASE)

#define LIST_PARAMETER(name, size) \
	static char *name[size]; \
	static int name##_count; \
	module_param_array(name, charp, &name##_count, 0444)
LIST_PARAMETER(pci, MAX_DEVICES);
LIST_PARAMETER(drm, MAX_DEVICES);
LIST_PARAMETER(accel, MAX_DEVICES);
LIST_PARAMETER(chr, MAX_DEVICES);
LIST_PARAMETER(gpu, MAX_DEVICES);
LIST_PARAMETER(engine, 8);

static int slow_nr = -1, slow_ms = 100, err_nr = -1, err_no = 5;
module_param(slow_nr, int, 0644);
module_param(slow_ms, int, 0644);
module_param(err_nr, int, 0644);
module_param(err_no, int, 0644);
static uint topology, cycle_mhz, memory_kib;
module_param(topology, uint, 0444);
module_param(cycle_mhz, uint, 0644);
module_param(memory_kib, uint, 0644);

/* What every call does, whatever kind of node it came through. */
static int answer(int nr, u64 *busy_ns)
{
	u64 begin = ktime_get_ns();
	int result = 0;

	if (nr == READ_ONCE(slow_nr) && msleep_interruptible(READ_ONCE(slow_ms)))
		result = -ERESTARTSYS;
	else if (nr == READ_ONCE(err_nr))
		result = -READ_ONCE(err_no);
	*busy_ns += ktime_get_ns() - begin;
	return result;
}

/* Cuts "what@address" in two; NULL when there is no address. */
static char *cut_address(char *text)
{
	strsep(&text, "@");
	return text;
}

/* ---- PCI ---------------------------------------------------------------------------------------------------------- */

static const struct pci_device_id testdevs[] = { { PCI_DEVICE(0x1b36, 0x0005) }, { } };
static struct pci_driver *pci_drivers[MAX_DEVICES];
static char *pci_addresses[MAX_DEVICES];

static int claim(struct pci_dev *device, const struct pci_device_id *id)
{
	for (int i = 0; i < pci_count; i++)
		if (pci_addresses[i] && !strcmp(pci_addresses[i], pci_name(device)) &&
		    !strcmp(pci[i], device->dev.driver->name))
			return 0;
	return -ENODEV;
}

/* One driver per name; it binds to all its devices at once. */
static int add_pci(int index)
{
	struct pci_driver *driver;
	int result;

	for (int i = 0; i < index; i++)
		if (!strcmp(pci[i], pci[index]))
			return 0;
	driver = kzalloc(sizeof(*driver), GFP_KERNEL);
	if (!driver)
		return -ENOMEM;
	driver->name = pci[index];
	driver->id_table = testdevs;
	driver->probe = claim;
	result = pci_register_driver(driver);
	if (result)
		kfree(driver);
	else
		pci_drivers[index] = driver;
	return result;
}

/* The PCI device at this address; the caller puts it back. */
static struct device *find_pci(const char *address)
{
	return bus_find_device_by_name(&pci_bus_type, NULL, address) ?: ERR_PTR(-ENODEV);
}

/* ---- DRM and accel ------------------------------------------------------------------------------------------------ */

struct client {
	u64 busy_ns;
	int id;
};

struct fake {
	struct drm_driver driver;
	struct platform_driver platform_driver;
	struct platform_device *platform;
	struct device *pci;
	struct drm_device *device;
	bool bound, registered;
};

static struct fake *fakes[2 * MAX_DEVICES];
static int fake_count;
static atomic_t last_client;

static int fake_open(struct drm_device *device, struct drm_file *file)
{
	struct client *client = kzalloc(sizeof(*client), GFP_KERNEL);

	if (!client)
		return -ENOMEM;
	client->id = atomic_inc_return(&last_client);
	file->driver_priv = client;
	return 0;
}

static void fake_postclose(struct drm_device *device, struct drm_file *file)
{
	kfree(file->driver_priv);
}

/* A handler is not told its number, so each number has its own. The tables' commands have neither size nor direction:
 * the DRM core then copies nothing and takes whatever size a caller encodes. */
#define SIXTEEN(M, x) M(x##0) M(x##1) M(x##2) M(x##3) M(x##4) M(x##5) M(x##6) M(x##7) \
		      M(x##8) M(x##9) M(x##a) M(x##b) M(x##c) M(x##d) M(x##e) M(x##f)
#define ALL_NRS(M) SIXTEEN(M, 4) SIXTEEN(M, 5) SIXTEEN(M, 6) SIXTEEN(M, 7) SIXTEEN(M, 8) SIXTEEN(M, 9)
#define HANDLER(nr) \
	static int handle_##nr(struct drm_device *device, void *data, struct drm_file *file) \
	{ \
		return answer(0x##nr, &((struct client *)file->driver_priv)->busy_ns); \
	}
#define ENTRY(nr) [0x##nr - DRM_COMMAND_BASE] = { \
	.cmd = DRM_IO(0x##nr), .flags = DRM_RENDER_ALLOW, .func = handle_##nr, .name = "FAKE_" #nr },
ALL_NRS(HANDLER)
static const struct drm_ioctl_desc ioctls[DRIVER_NRS] = { ALL_NRS(ENTRY) };

static void print_use(struct drm_printer *out, struct client *client)
{
	u64 mhz = READ_ONCE(cycle_mhz), kib = READ_ONCE(memory_kib);

	for (int i = 0; i < engine_count; i++) {
		u64 busy_ns = i ? 0 : client->busy_ns;

		if (!mhz) {
			drm_printf(out, "drm-engine-%s:\t%llu ns\n", engine[i], busy_ns);
			continue;
		}
		drm_printf(out, "drm-cycles-%s:\t%llu\n", engine[i], busy_ns * mhz / 1000);
		drm_printf(out, "drm-total-cycles-%s:\t%llu\n", engine[i], ktime_get_boottime_ns() * mhz / 1000);
	}
	if (kib)
		drm_printf(out, "drm-total-vram0:\t%llu KiB\ndrm-resident-vram0:\t%llu KiB\n", 2 * kib, kib);
}

#if SINCE(6, 5)
static void fake_fdinfo(struct drm_printer *out, struct drm_file *file)
{
	print_use(out, file->driver_priv);
}
#define FDINFO drm_show_fdinfo
#else
static void fake_fdinfo(struct seq_file *out, struct file *opened)
{
	struct drm_file *file = opened->private_data;
	struct client *client = file->driver_priv;
	struct drm_printer printer = drm_seq_file_printer(out);

	seq_printf(out, "drm-driver:\t%s\ndrm-client-id:\t%d\n", file->minor->dev->driver->name, client->id);
	print_use(&printer, client);
}
#define FDINFO fake_fdinfo
#endif

#define NVIF 0x47

static bool is_early(struct file *file, unsigned int cmd)
{
	struct drm_file *opened = file->private_data;

	return _IOC_NR(cmd) == NVIF && !strcmp(opened->minor->dev->driver->name, "nouveau");
}

static long early_answer(struct file *file)
{
	struct drm_file *opened = file->private_data;

	return answer(NVIF, &((struct client *)opened->driver_priv)->busy_ns);
}

static long fake_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return is_early(file, cmd) ? early_answer(file) : drm_ioctl(file, cmd, arg);
}

static long fake_compat_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return is_early(file, cmd) ? early_answer(file) : drm_compat_ioctl(file, cmd, arg);
}

#ifdef FOP_UNSIGNED_OFFSET
#define SIGNEDNESS .fop_flags = FOP_UNSIGNED_OFFSET,
#else
#define SIGNEDNESS
#endif
#define NODE_OPERATIONS(how) { \
	SIGNEDNESS .owner = THIS_MODULE, .open = how, .release = drm_release, .unlocked_ioctl = fake_ioctl, \
	.compat_ioctl = fake_compat_ioctl, .poll = drm_poll, .read = drm_read, .llseek = noop_llseek, \
	.show_fdinfo = FDINFO }
static const struct file_operations drm_operations = NODE_OPERATIONS(drm_open);
#if HAVE_ACCEL
static const struct file_operations accel_operations = NODE_OPERATIONS(accel_open);
#endif

static void remove_fake(struct fake *fake)
{
	if (fake->registered)
		drm_dev_unregister(fake->device);
	if (!IS_ERR_OR_NULL(fake->device))
		drm_dev_put(fake->device);
	if (!IS_ERR_OR_NULL(fake->platform))
		platform_device_unregister(fake->platform);
	if (fake->bound)
		platform_driver_unregister(&fake->platform_driver);
	if (!IS_ERR_OR_NULL(fake->pci))
		put_device(fake->pci);
	kfree(fake);
}

static bool driver_is_there(const char *name)
{
	for (int i = 0; i < fake_count; i++)
		if (fakes[i]->bound && !strcmp(fakes[i]->platform_driver.driver.name, name))
			return true;
	return false;
}

/* What the DRM device hangs under. Without probe and remove functions the platform bus binds by name alone. */
static struct device *add_parent(struct fake *fake, const char *name, const char *address)
{
	bool unbound = name[0] == '/';
	int result;

	if (address) {
		fake->pci = find_pci(address);
		return fake->pci;
	}
	if (!unbound && !driver_is_there(name)) {
		fake->platform_driver.driver.name = name;
		fake->platform_driver.driver.suppress_bind_attrs = true;
		result = platform_driver_register(&fake->platform_driver);
		if (result)
			return ERR_PTR(result);
		fake->bound = true;
	}
	fake->platform = platform_device_register_simple(name + unbound, unbound ? PLATFORM_DEVID_NONE : PLATFORM_DEVID_AUTO,
							 NULL, 0);
	return IS_ERR(fake->platform) ? ERR_CAST(fake->platform) : &fake->platform->dev;
}

static void describe(struct drm_driver *driver, char *name, bool is_accel)
{
	driver->name = driver->desc = name;
#if !SINCE(6, 14)
	driver->date = "20250101";
#endif
	driver->major = 1;
	driver->driver_features = DRIVER_RENDER;
	driver->fops = &drm_operations;
#if HAVE_ACCEL
	if (is_accel) {
		driver->driver_features = DRIVER_COMPUTE_ACCEL;
		driver->fops = &accel_operations;
	}
#endif
	driver->open = fake_open;
	driver->postclose = fake_postclose;
#if SINCE(6, 5)
	driver->show_fdinfo = fake_fdinfo;
#endif
	driver->ioctls = ioctls;
	driver->num_ioctls = DRIVER_NRS;
}

static int add_fake(char *name, bool is_accel)
{
	struct fake *fake = kzalloc(sizeof(*fake), GFP_KERNEL);
	char *address = cut_address(name);
	struct device *parent;
	int result;

	if (!fake)
		return -ENOMEM;
	describe(&fake->driver, name + (name[0] == '/'), is_accel);
	parent = add_parent(fake, name, address);
	result = PTR_ERR_OR_ZERO(parent);
	if (result)
		goto failed;
	fake->device = drm_dev_alloc(&fake->driver, parent);
	result = PTR_ERR_OR_ZERO(fake->device);
	if (result)
		goto failed;
	result = drm_dev_register(fake->device, 0);
	if (result)
		goto failed;
	fake->registered = true;
	fakes[fake_count++] = fake;
	return 0;
failed:
	remove_fake(fake);
	return result;
}

/* ---- KFD's topology ----------------------------------------------------------------------------------------------- */

static struct kobject *directories[3];

/* As amdkfd does, only to those whose device cgroup lets them use the GPU's render node. */
static ssize_t show_topology(struct kobject *directory, struct kobj_attribute *attribute, char *out)
{
	int minor = fakes[0]->device->render->index;

	if (devcgroup_check_permission(DEVCG_DEV_CHAR, DRM_MAJOR, minor, DEVCG_ACC_WRITE | DEVCG_ACC_READ))
		return -EPERM;
	if (!strcmp(attribute->attr.name, "gpu_id"))
		return sysfs_emit(out, "%u\n", topology);
	return sysfs_emit(out, "domain 0\nlocation_id 0\ndrm_render_minor %d\n", minor);
}

static struct kobj_attribute gpu_id = __ATTR(gpu_id, 0444, show_topology, NULL);
static struct kobj_attribute properties = __ATTR(properties, 0444, show_topology, NULL);

/* topology/nodes/1; 0 would be a processor. */
static int add_topology(struct kobject *above)
{
	static const char *const names[] = { "topology", "nodes", "1" };

	if (!fake_count)
		return -EINVAL;
	for (int i = 0; i < ARRAY_SIZE(directories); i++) {
		directories[i] = kobject_create_and_add(names[i], above);
		if (!directories[i])
			return -ENOMEM;
		above = directories[i];
	}
	return sysfs_create_file(above, &gpu_id.attr) ?: sysfs_create_file(above, &properties.attr);
}

static void remove_topology(void)
{
	for (int i = ARRAY_SIZE(directories); i--;)
		kobject_put(directories[i]);
}

/* ---- character devices -------------------------------------------------------------------------------------------- */

struct node {
	struct cdev cdev;
	dev_t number;
	struct class *class;
	struct device *parent;
	bool first_of_class, live, shown;
	char class_name[32];
};

static struct node nodes[MAX_DEVICES];
static int node_count;

#if SINCE(6, 4)
#define new_class(name) class_create(name)
#else
#define new_class(name) class_create(THIS_MODULE, name)
#endif

static int node_open(struct inode *inode, struct file *file)
{
	return 0;
}

static long node_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	u64 busy_ns = 0;

	return answer(_IOC_NR(cmd), &busy_ns);
}

static const struct file_operations node_operations = {
	.owner = THIS_MODULE, .open = node_open, .unlocked_ioctl = node_ioctl, .compat_ioctl = node_ioctl,
	.llseek = noop_llseek,
};

static void remove_node(struct node *node)
{
	if (node->shown)
		device_destroy(node->class, node->number);
	if (node->live)
		cdev_del(&node->cdev);
	if (node->number)
		unregister_chrdev_region(node->number, 1);
	if (!IS_ERR_OR_NULL(node->parent))
		put_device(node->parent);
}

static struct class *class_of(struct node *node, const char *name)
{
	for (struct node *other = nodes; other < node; other++)
		if (!strcmp(other->class_name, name))
			return other->class;
	node->first_of_class = true;
	strscpy(node->class_name, name, sizeof(node->class_name));	/* a class keeps no copy of its name */
	return new_class(node->class_name);
}

static int show_node(struct node *node, const char *name, const char *class)
{
	struct device *device;

	node->class = class_of(node, class);
	if (IS_ERR(node->class))
		return PTR_ERR(node->class);
	device = device_create(node->class, node->parent, node->number, NULL, "%s", name);
	if (IS_ERR(device))
		return PTR_ERR(device);
	node->shown = true;
	return topology && !strcmp(name, "kfd") ? add_topology(&device->kobj) : 0;
}

/* A node that failed half-way counts too: fakeaccel_exit() takes away what there is of it. */
static int add_node(char *text)
{
	struct node *node = &nodes[node_count++];
	char *address = cut_address(text), *name = strsep(&text, ":");
	char *major_text = strsep(&text, ":"), *minor_text = strsep(&text, ":");
	unsigned int major, minor;
	int result;

	if (!minor_text || kstrtouint(major_text, 0, &major) || kstrtouint(minor_text, 0, &minor))
		return -EINVAL;
	node->parent = address ? find_pci(address) : NULL;
	if (IS_ERR(node->parent))
		return PTR_ERR(node->parent);
	node->number = MKDEV(major, minor);
	result = major ? register_chrdev_region(node->number, 1, name) : alloc_chrdev_region(&node->number, minor, 1, name);
	if (result) {
		node->number = 0;
		return result;
	}
	cdev_init(&node->cdev, &node_operations);
	result = cdev_add(&node->cdev, node->number, 1);
	if (result)
		return result;
	node->live = true;
	return text && !strcmp(text, "-") ? 0 : show_node(node, name, text ?: name);
}

/* ---- NVIDIA's procfs ---------------------------------------------------------------------------------------------- */

static struct proc_dir_entry *proc_root;

static int show_information(struct seq_file *out, void *text)
{
	char *minor = out->private;

	seq_printf(out, "Model: \t\t Pretended GPU\nGPU UUID: \t GPU-00000000-0000-0000-0000-00000000000%s\n", minor);
	seq_printf(out, "Bus Type: \t PCIe\nDevice Minor: \t %s\nGPU Excluded:\t No\n", minor);
	return 0;
}

static int add_gpus(void)
{
	struct proc_dir_entry *all, *one;

	if (!gpu_count)
		return 0;
	proc_root = proc_mkdir("driver/nvidia", NULL);
	all = proc_root ? proc_mkdir("gpus", proc_root) : NULL;
	for (int i = 0; all && i < gpu_count; i++) {
		char *address = cut_address(gpu[i]);

		one = address ? proc_mkdir(address, all) : NULL;
		if (!one || !proc_create_single_data("information", 0444, one, show_information, gpu[i]))
			return -ENOMEM;
	}
	return all ? 0 : -ENOMEM;
}

/* ---- loading and unloading ---------------------------------------------------------------------------------------- */

static void fakeaccel_exit(void)
{
	proc_remove(proc_root);
	remove_topology();
	while (fake_count)
		remove_fake(fakes[--fake_count]);
	for (int i = node_count; i--;)
		remove_node(&nodes[i]);
	for (int i = node_count; i--;)
		if (nodes[i].first_of_class && !IS_ERR(nodes[i].class))
			class_destroy(nodes[i].class);
	for (int i = 0; i < pci_count; i++)
		if (pci_drivers[i]) {
			pci_unregister_driver(pci_drivers[i]);
			kfree(pci_drivers[i]);
		}
}

static int add_all(void)
{
	int result = 0, i;

	for (i = 0; i < pci_count; i++)
		pci_addresses[i] = cut_address(pci[i]);
	for (i = 0; !result && i < pci_count; i++)
		result = add_pci(i);
	for (i = 0; !result && i < drm_count; i++)
		result = add_fake(drm[i], false);
	for (i = 0; !result && i < accel_count; i++)
		result = HAVE_ACCEL ? add_fake(accel[i], true) : -EOPNOTSUPP;
	for (i = 0; !result && i < chr_count; i++)
		result = add_node(chr[i]);
	return result ?: add_gpus();
}

static int __init fakeaccel_init(void)
{
	int result = add_all();

	if (result) {
		pr_err("fakeaccel: %d after %d DRM and accel devices, %d nodes\n", result, fake_count, node_count);
		fakeaccel_exit();
	}
	return result;
}
module_init(fakeaccel_init);
module_exit(fakeaccel_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Pretended accelerators for tests of ioctl counting");
