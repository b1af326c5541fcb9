// SPDX-License-Identifier: GPL-2.0-only
/*
 * fakesched: an NPU that does not exist, whose jobs the kernel's GPU scheduler hands out, for tests in guests. Touches no
 * hardware. As rocket does it: an accel device below a platform device rknn without a driver, and one core, a platform
 * device with driver rocket, whose ring takes two jobs and works on one after the other. The driver tells no time.
 *
 *   job_ms   how long a job takes, also in /sys/module/fakesched/parameters
 *   tally    a line "busy NS": how long there was work; then for each client "PID NS JOBS": how long it was worked on
 *
 * Call 0x50 makes a job and returns when it is done. Linux 7.3 alone: the scheduler's interface changes with every release.
 */
#include <linux/module.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0) && IS_ENABLED(CONFIG_DRM_ACCEL) && IS_ENABLED(CONFIG_DRM_SCHED)
#include <linux/delay.h>
#include <linux/dma-fence.h>
#include <linux/ktime.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <drm/drm_accel.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>
#include <drm/gpu_scheduler.h>

#define MAX_CLIENTS 32
#define JOB_NR 0x50

static int job_ms = 5;
module_param(job_ms, int, 0644);

static struct tally {
	int pid;
	u64 ns, jobs;
} tallies[MAX_CLIENTS];
static int tally_count, waiting;
static u64 busy_ns, busy_since;
static DEFINE_SPINLOCK(tally_lock);

struct client {
	struct drm_sched_entity entity;
	struct tally *tally;
};

struct job {
	struct drm_sched_job base;
	struct dma_fence *done;
	struct work_struct work;
	struct tally *tally;
};

static struct drm_gpu_scheduler scheduler, *schedulers[] = { &scheduler };
static struct workqueue_struct *hardware;
static u64 fence_context;
static atomic64_t fence_number;
static DEFINE_SPINLOCK(fence_lock);

static int show_tally(char *out, const struct kernel_param *unused)
{
	int length;

	spin_lock(&tally_lock);
	length = sysfs_emit(out, "busy %llu\n", busy_ns);
	for (int i = 0; i < tally_count; i++)
		length += sysfs_emit_at(out, length, "%d %llu %llu\n", tallies[i].pid, tallies[i].ns, tallies[i].jobs);
	spin_unlock(&tally_lock);
	return length;
}
static const struct kernel_param_ops tally_operations = { .get = show_tally };
module_param_cb(tally, &tally_operations, NULL, 0444);

static const char *fence_name(struct dma_fence *fence)
{
	return "fakesched";
}

static const struct dma_fence_ops fence_operations = { .get_driver_name = fence_name, .get_timeline_name = fence_name };

/* One job after the other, as the workqueue is ordered. The job may be gone once its fence is signalled. */
static void work_on(struct work_struct *work)
{
	struct job *job = container_of(work, struct job, work);
	struct dma_fence *done = dma_fence_get(job->done);
	u64 begin = ktime_get_ns();

	msleep(READ_ONCE(job_ms));
	spin_lock(&tally_lock);
	job->tally->ns += ktime_get_ns() - begin;
	job->tally->jobs++;
	spin_unlock(&tally_lock);
	dma_fence_signal(done);
	dma_fence_put(done);
}

static struct dma_fence *run_job(struct drm_sched_job *base)
{
	struct job *job = container_of(base, struct job, base);

	queue_work(hardware, &job->work);
	return dma_fence_get(job->done);
}

static enum drm_gpu_sched_stat timedout_job(struct drm_sched_job *base)
{
	return DRM_GPU_SCHED_STAT_RESET;
}

static void free_job(struct drm_sched_job *base)
{
	struct job *job = container_of(base, struct job, base);

	drm_sched_job_cleanup(base);
	dma_fence_put(job->done);
	kfree(job);
}

static const struct drm_sched_backend_ops scheduler_operations = {
	.run_job = run_job, .timedout_job = timedout_job, .free_job = free_job,
};

static void note_waiting(int change)
{
	spin_lock(&tally_lock);
	if (!waiting)
		busy_since = ktime_get_ns();
	waiting += change;
	if (!waiting)
		busy_ns += ktime_get_ns() - busy_since;
	spin_unlock(&tally_lock);
}

static struct job *make_job(struct client *client, u64 client_id)
{
	struct job *job = kzalloc(sizeof(*job), GFP_KERNEL);

	if (!job)
		return NULL;
	job->done = kzalloc(sizeof(*job->done), GFP_KERNEL);
	if (!job->done || drm_sched_job_init(&job->base, &client->entity, 1, NULL, client_id)) {
		kfree(job->done);
		kfree(job);
		return NULL;
	}
	dma_fence_init(job->done, &fence_operations, &fence_lock, fence_context, atomic64_inc_return(&fence_number));
	INIT_WORK(&job->work, work_on);
	job->tally = client->tally;
	return job;
}

static int submit(struct drm_device *device, void *data, struct drm_file *file)
{
	struct job *job = make_job(file->driver_priv, file->client_id);
	struct dma_fence *finished;

	if (!job)
		return -ENOMEM;
	drm_sched_job_arm(&job->base);
	finished = dma_fence_get(&job->base.s_fence->finished);
	note_waiting(1);
	drm_sched_entity_push_job(&job->base);
	dma_fence_wait(finished, false);
	note_waiting(-1);
	dma_fence_put(finished);
	return 0;
}

static int fake_open(struct drm_device *device, struct drm_file *file)
{
	struct client *client = kzalloc(sizeof(*client), GFP_KERNEL);
	int result;

	if (!client)
		return -ENOMEM;
	result = drm_sched_entity_init(&client->entity, DRM_SCHED_PRIORITY_NORMAL, schedulers, 1, NULL);
	spin_lock(&tally_lock);
	if (tally_count < MAX_CLIENTS)
		client->tally = &tallies[tally_count++];
	spin_unlock(&tally_lock);
	if (result || !client->tally) {
		kfree(client);
		return result ?: -ENOSPC;
	}
	client->tally->pid = task_tgid_nr(current);
	file->driver_priv = client;
	return 0;
}

static void fake_postclose(struct drm_device *device, struct drm_file *file)
{
	struct client *client = file->driver_priv;

	drm_sched_entity_destroy(&client->entity);
	kfree(client);
}

static const struct drm_ioctl_desc ioctls[] = {
	[JOB_NR - DRM_COMMAND_BASE] = {
		.cmd = DRM_IO(JOB_NR), .flags = DRM_RENDER_ALLOW, .func = submit, .name = "FAKE_SUBMIT" },
};
static const struct file_operations operations = {
	.fop_flags = FOP_UNSIGNED_OFFSET, .owner = THIS_MODULE, .open = accel_open, .release = drm_release,
	.unlocked_ioctl = drm_ioctl, .compat_ioctl = drm_compat_ioctl, .poll = drm_poll, .read = drm_read,
	.llseek = noop_llseek,
};
static const struct drm_driver driver = {
	.name = "rocket", .desc = "rocket", .major = 1, .driver_features = DRIVER_COMPUTE_ACCEL, .fops = &operations,
	.open = fake_open, .postclose = fake_postclose, .ioctls = ioctls, .num_ioctls = ARRAY_SIZE(ioctls),
};

static struct platform_driver core_driver = { .driver = { .name = "rocket", .suppress_bind_attrs = true } };
static struct platform_device *parent, *core;
static struct drm_device *device;
static bool driver_is_there, scheduler_is_there, registered;

static void fakesched_exit(void)
{
	if (registered)
		drm_dev_unregister(device);
	if (!IS_ERR_OR_NULL(device))
		drm_dev_put(device);
	if (scheduler_is_there)
		drm_sched_fini(&scheduler);
	if (hardware)
		destroy_workqueue(hardware);
	if (!IS_ERR_OR_NULL(core))
		platform_device_unregister(core);
	if (driver_is_there)
		platform_driver_unregister(&core_driver);
	if (!IS_ERR_OR_NULL(parent))
		platform_device_unregister(parent);
}

static int add_scheduler(void)
{
	struct drm_sched_init_args args = {
		.ops = &scheduler_operations, .num_rqs = DRM_SCHED_PRIORITY_COUNT, .credit_limit = 2,
		.timeout = MAX_SCHEDULE_TIMEOUT, .name = dev_name(&core->dev), .dev = &core->dev,
	};
	int result;

	fence_context = dma_fence_context_alloc(1);
	hardware = alloc_ordered_workqueue("fakesched", 0);
	if (!hardware)
		return -ENOMEM;
	result = drm_sched_init(&scheduler, &args);
	scheduler_is_there = !result;
	return result;
}

static int add_all(void)
{
	int result;

	parent = platform_device_register_simple("rknn", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	result = platform_driver_register(&core_driver);
	if (result)
		return result;
	driver_is_there = true;
	core = platform_device_register_simple("rocket", 0, NULL, 0);
	if (IS_ERR(core))
		return PTR_ERR(core);
	result = add_scheduler();
	if (result)
		return result;
	device = drm_dev_alloc(&driver, &parent->dev);
	if (IS_ERR(device))
		return PTR_ERR(device);
	result = drm_dev_register(device, 0);
	registered = !result;
	return result;
}

static int __init fakesched_init(void)
{
	int result = add_all();

	if (result)
		fakesched_exit();
	return result;
}
module_init(fakesched_init);
module_exit(fakesched_exit);
#endif

MODULE_DESCRIPTION("Pretended NPU with the kernel's GPU scheduler, for tests");
MODULE_LICENSE("GPL");
