/* Connects struct model_tuned_store to the link: polyd stores the records for all workers on the same kind of GPU. */
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/process/attempt.h"
#include "kernels/base/log.h"

#define RECALL_MS 10000 /* polyd may be restarting; without its answer the run measures again */

static struct link_tuned of(const struct pk_backend_info *device)
{
    return (struct link_tuned){.gpu = device->name, .driver = device->driver, .library = device->library};
}

static void recall(void *ctx, const struct pk_backend_info *device,
                   void (*take)(void *to, const char *key, const void *value, size_t size), void *to)
{
    struct attempt *a = ctx;
    struct link_tuned which = of(device);
    struct pd_why why;

    if (link_tuned_recall(a->link, &which, RECALL_MS, take, to, &why) != PD_OK)
        pd_log(PD_LOG_WARNING, "worker", "measured_choices=unknown gpu=\"%s\" why=\"%s\"", which.gpu,
               why.text);
}

static void report(void *ctx, const struct pk_backend_info *device, const char *key, const void *value,
                   size_t size)
{
    struct attempt *a = ctx;
    struct link_tuned which = of(device);

    if (!link_tuned_report(a->link, &which, key, value, size))
        pd_log(PD_LOG_WARNING, "worker", "measured_choice=lost bytes=%zu key=\"%.100s\"", size, key);
}

struct model_tuned_store attempt_tuned(struct attempt *a)
{
    return (struct model_tuned_store){.ctx = a, .recall = recall, .report = report};
}
