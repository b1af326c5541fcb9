// SPDX-License-Identifier: GPL-2.0-only
/*
 * fakevfio: a device of VFIO that does not exist, for tests in guests. Touches no hardware and needs no IOMMU.
 *
 *   address=ADDRESS   the pci-testdev of QEMU that is handed out, by a PCI driver called vfio-pci; it shows the class of
 *                     a processing accelerator meanwhile
 *
 * Group and container are the kernel's own. Every call on the device answers 0. Unloading takes everything away again.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/version.h>
#include <linux/vfio.h>

static char *address = "";
module_param(address, charp, 0444);

struct fake {
	struct vfio_device vfio;	/* first: VFIO frees it */
	u32 class;
};

static int fake_open(struct vfio_device *vfio)
{
	return 0;
}

static void fake_close(struct vfio_device *vfio)
{
}

static long fake_ioctl(struct vfio_device *vfio, unsigned int cmd, unsigned long arg)
{
	return 0;
}

static const struct vfio_device_ops ops = {
	.name = "fakevfio",
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	.release = vfio_free_device,
#endif
	.open_device = fake_open,
	.close_device = fake_close,
	.ioctl = fake_ioctl,
};

static int fake_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	struct fake *fake;
	int result;

	if (strcmp(pci_name(device), address))
		return -ENODEV;
	fake = vfio_alloc_device(fake, vfio, &device->dev, &ops);
	if (IS_ERR(fake))
		return PTR_ERR(fake);
	fake->class = device->class;
	device->class = 0x120000;
	pci_set_drvdata(device, fake);
	result = vfio_register_emulated_iommu_dev(&fake->vfio);
	if (result) {
		device->class = fake->class;
		vfio_put_device(&fake->vfio);
	}
	return result;
}

static void fake_remove(struct pci_dev *device)
{
	struct fake *fake = pci_get_drvdata(device);

	device->class = fake->class;
	vfio_unregister_group_dev(&fake->vfio);
	vfio_put_device(&fake->vfio);
}

static const struct pci_device_id testdevs[] = { { PCI_DEVICE(0x1b36, 0x0005) }, { } };

static struct pci_driver fakevfio = {
	.name = "vfio-pci",
	.id_table = testdevs,
	.probe = fake_probe,
	.remove = fake_remove,
};
module_pci_driver(fakevfio);

MODULE_DESCRIPTION("A device of VFIO that does not exist, for tests");
MODULE_LICENSE("GPL");
