/* Devices: what there is, who holds it and how it is; taking one out of service and back; the GPUs of
 * /metrics. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/server.h"
#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"

/* ---- the list --------------------------------------------------------------------------------- */

/* What the driver does not tell is null. */
static void kv_known(struct pd_buf *b, const char *key, int64_t value)
{
    if (value >= 0)
        api_json_kv_int(b, key, value);
    else
        api_json_kv_null(b, key);
}

static void kv_scaled(struct pd_buf *b, const char *key, int64_t value, double unit)
{
    if (value >= 0)
        api_json_kv_num(b, key, (double)value / unit);
    else
        api_json_kv_null(b, key);
}

static void gpu_json(struct pd_buf *b, const struct device *d, const struct device_sample *p)
{
    char text[24];

    api_json_open(b, '{');
    api_json_kv_str(b, "uuid", d->id);
    api_json_kv_int(b, "index", d->gpu);
    kv_known(b, "instance", d->instance);
    api_json_kv_bool(b, "split", d->split);
    api_json_kv_str(b, "pci", d->pci);
    snprintf(text, sizeof text, "%d.%d", d->major, d->minor);
    api_json_kv_str(b, "compute_capability", d->major ? text : NULL);
    kv_known(b, "numa_node", d->numa);
    kv_known(b, "memory_used_bytes", p->memory_used);
    kv_known(b, "memory_total_bytes", p->memory_total >= 0 ? p->memory_total : d->memory_bytes);
    kv_scaled(b, "utilization_ratio", p->utilization, 100);
    kv_scaled(b, "memory_utilization_ratio", p->memory_utilization, 100);
    kv_known(b, "temperature_celsius", p->temperature_c);
    kv_scaled(b, "power_watts", p->power_mw, 1000);
    kv_scaled(b, "power_limit_watts", p->power_limit_mw, 1000);
    kv_known(b, "sm_clock_mhz", p->sm_clock_mhz);
    kv_known(b, "ecc_corrected", p->ecc_corrected);
    kv_known(b, "ecc_uncorrected", p->ecc_uncorrected);
    api_json_kv_int(b, "xid_errors", p->xids);
    kv_known(b, "last_xid", p->last_xid ? p->last_xid : -1);
    api_json_kv_time(b, "last_xid_time", p->last_xid_us);
    kv_known(b, "process_count", p->process_count);
    api_json_key(b, "processes");
    api_json_open(b, '[');
    for (int i = 0; i < p->process_count && i < DEVICE_PROCESSES; i++) {
        if (!p->processes[i].pid)
            continue;
        api_json_open(b, '{');
        api_json_kv_int(b, "pid", p->processes[i].pid);
        kv_known(b, "memory_bytes", p->processes[i].memory_bytes);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    api_json_kv_num(b, "age_seconds", p->taken_us ? 1e-6 * (double)(pd_clock_mono_us() - p->taken_us) : 0);
    api_json_kv_bool(b, "stale", p->stale);
    api_json_close(b, '}');
}

static void drain_json(struct pd_buf *b, const char *who, const char *reason, int64_t us)
{
    if (!*who) {
        api_json_null(b);
        return;
    }
    api_json_open(b, '{');
    api_json_kv_str(b, "reason", reason);
    api_json_kv_str(b, "who", who);
    api_json_kv_time(b, "since", us);
    api_json_close(b, '}');
}

static void device_row(void *ctx, const struct sup_device *d)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_str(b, "id", d->id);
    api_json_kv_str(b, "name", d->name);
    api_json_kv_str(b, "kind", d->kind);
    api_json_kv_str(b, "model", d->model);
    api_json_kv_int(b, "threads", d->threads);
    api_json_kv_int(b, "memory_bytes", d->memory_bytes);
    api_json_kv_str(b, "state", d->state);
    api_json_kv_str(b, "reason", d->reason);
    if (d->run_id) {
        api_json_kv_id(b, "run_id", d->run_id);
        api_json_kv_int(b, "attempt", d->attempt);
    } else {
        api_json_kv_null(b, "run_id");
        api_json_kv_null(b, "attempt");
    }
    api_json_kv_int(b, "models", d->models);
    api_json_key(b, "drained");
    drain_json(b, d->drained_by, d->drain_reason, d->drained_us);
    api_json_key(b, "gpu");
    if (d->facts)
        gpu_json(b, d->facts, d->sample);
    else
        api_json_null(b);
    api_json_close(b, '}');
}

static void driver_json(struct pd_buf *b, struct sup *sup)
{
    const struct device_driver *driver;
    const char *why;
    int gpus = sup_gpu_count(sup, &why, &driver);
    char cuda[24];

    snprintf(cuda, sizeof cuda, "%d.%d", driver->cuda_major, driver->cuda_minor);
    api_json_open(b, '{');
    api_json_kv_int(b, "gpus", gpus);
    api_json_kv_str(b, "why_none", gpus ? NULL : why);
    api_json_kv_str(b, "version", driver->version[0] ? driver->version : NULL);
    api_json_kv_str(b, "nvml", driver->nvml[0] ? driver->nvml : NULL);
    api_json_kv_str(b, "cuda", driver->cuda_major ? cuda : NULL);
    api_json_kv_bool(b, "xid_events", driver->events);
    api_json_close(b, '}');
}

void api_device_list(struct api_req *r)
{
    struct sup *sup = api_deps_of(api_of(r))->sup;
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_key(&b, "devices");
    api_json_open(&b, '[');
    sup_device_list(sup, device_row, &b);
    api_json_close(&b, ']');
    api_json_key(&b, "driver");
    driver_json(&b, sup);
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

/* ---- out of service and back ------------------------------------------------------------------ */

struct drain {
    struct api_write w; /* first */
    bool on;
    char id[DEVICE_ID_BYTES], name[32], reason[160];
};

struct find {
    const char *wanted;
    bool found;
    char id[DEVICE_ID_BYTES], name[32];
};

static void find_row(void *ctx, const struct sup_device *d)
{
    struct find *f = ctx;

    if (strcmp(f->wanted, d->name) != 0 && strcmp(f->wanted, d->id) != 0)
        return;
    f->found = true;
    memcpy(f->id, d->id, sizeof f->id);
    memcpy(f->name, d->name, sizeof f->name);
}

static bool read_reason(struct api_req *r, char *out, size_t size)
{
    json_t *body = api_body_json(r, API_JSON_EMPTY_OK), *value;
    const char *key;

    if (!body)
        return false;
    json_object_foreach(body, key, value)
    {
        if (strcmp(key, "reason") != 0)
            api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'", key);
        else if (!json_is_string(value) || json_string_length(value) >= size)
            api_fail_param(r, PD_ERR_INVALID, key, "%s must be a text of at most %zu bytes", key, size - 1);
        else
            snprintf(out, size, "%s", json_string_value(value));
    }
    json_decref(body);
    return !api_failed(r);
}

static enum pd_err drain_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct drain *d = (struct drain *)(void *)w;
    struct store_drain row = {.device = d->id, .name = d->name, .reason = d->reason, .who = "a client"};

    w->status = 200;
    return d->on ? store_device_drain(tx, &row, why) : store_device_undrain(tx, &row, why);
}

struct drain_look {
    const char *id;
    struct pd_buf *b;
    bool found;
};

static bool drain_row(void *ctx, const struct store_drain *d)
{
    struct drain_look *l = ctx;

    if (strcmp(l->id, d->device) != 0)
        return true;
    l->found = true;
    drain_json(l->b, d->who, d->reason, d->time_us);
    return false;
}

/* As the rows say it: the supervisor hears of it a moment later. */
static void drain_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    struct drain *d = (struct drain *)(void *)w;
    struct store *store = w ? api_reader(r) : NULL;
    struct pd_why why = {.text = ""};
    struct drain_look look;
    enum pd_err err;
    struct pd_buf b;

    if (!store)
        return;
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "id", d->id);
    api_json_kv_str(&b, "name", d->name);
    api_json_key(&b, "drained");
    look = (struct drain_look){.id = d->id, .b = &b};
    err = store_drain_list(store, drain_row, &look, &why);
    if (!look.found)
        api_json_null(&b);
    api_json_close(&b, '}');
    if (err != PD_OK) {
        pd_buf_done(&b);
        api_fail_why(r, err, &why);
        return;
    }
    api_reply_json(r, 200, &b);
}

static void device_command(struct api_req *r, bool on)
{
    struct find f = {.wanted = api_param(r, 0)};
    char reason[sizeof((struct drain *)0)->reason];
    struct api_write *w;
    struct drain *d;

    sup_device_list(api_deps_of(api_of(r))->sup, find_row, &f);
    if (!f.found) {
        api_fail(r, PD_ERR_NOT_FOUND, "there is no device '%.80s'; /api/v1/devices lists names and ids",
                 f.wanted);
        return;
    }
    snprintf(reason, sizeof reason, "%s", on ? "taken out of service" : "put back into service");
    if (!read_reason(r, reason, sizeof reason))
        return;
    w = api_write_begin(r, sizeof *d, true, NULL, drain_answer);
    if (!w)
        return;
    d = (struct drain *)(void *)w;
    d->on = on;
    memcpy(d->id, f.id, sizeof d->id);
    memcpy(d->name, f.name, sizeof d->name);
    memcpy(d->reason, reason, sizeof d->reason);
    w->apply = drain_apply;
    w->notify = true;
    api_write_submit(w, STORE_LANE_COMMAND, 3);
}

void api_device_drain(struct api_req *r)
{
    device_command(r, true);
}

void api_device_undrain(struct api_req *r)
{
    device_command(r, false);
}

/* ---- /metrics --------------------------------------------------------------------------------- */

enum { ALLOCATED, UTILIZATION, USED, TOTAL, POWER, TEMPERATURE, XIDS, OUT, FAMILIES };

struct gpu_metrics {
    struct pd_buf b[FAMILIES];
};

static void PD_PRINTF(4, 5)
    line(struct gpu_metrics *m, int family, const struct sup_device *d, const char *fmt, ...);

static const struct {
    const char *name, *type, *help;
} families[FAMILIES] = {
    [ALLOCATED] = {"polyd_gpu_allocated", "gauge", "1 where a run or a served model holds the GPU."},
    [UTILIZATION] = {"polyd_gpu_utilization_ratio", "gauge",
                     "Part of the last moment in which a kernel ran."},
    [USED] = {"polyd_gpu_memory_used_bytes", "gauge", "Memory in use, by anyone."},
    [TOTAL] = {"polyd_gpu_memory_total_bytes", "gauge", "Memory of the GPU or MIG instance."},
    [POWER] = {"polyd_gpu_power_watts", "gauge", "Power drawn."},
    [TEMPERATURE] = {"polyd_gpu_temperature_celsius", "gauge", "Temperature of the GPU."},
    [XIDS] = {"polyd_gpu_xid_errors_total", "counter",
              "Errors (XIDs) that the driver reported since the start."},
    [OUT] = {"polyd_gpu_out_of_service", "gauge",
             "1 where no run can start: drained, broken, busy with a foreign process, or not answering."},
};

static void line(struct gpu_metrics *m, int family, const struct sup_device *d, const char *fmt, ...)
{
    char number[64];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(number, sizeof number, fmt, ap);
    va_end(ap);
    /* "cuda:3" is GPU 3, "cuda:0.1" an instance; a UUID holds nothing that a label must escape. */
    pd_buf_printf(&m->b[family], "%s{gpu=\"%s\",uuid=\"%s\"} %s\n", families[family].name, d->name + 5, d->id,
                  number);
}

static void gpu_row(void *ctx, const struct sup_device *d)
{
    struct gpu_metrics *m = ctx;
    const struct device_sample *p = d->sample;
    bool out = strcmp(d->state, "free") != 0 && strcmp(d->state, "busy") != 0 &&
               strcmp(d->state, "serving") != 0 && strcmp(d->state, "checking") != 0;

    if (!d->facts)
        return;
    if (!d->facts->split) { /* such a GPU is offered in parts */
        line(m, ALLOCATED, d, "%d", d->run_id || d->models);
        line(m, OUT, d, "%d", out);
    }
    line(m, XIDS, d, "%lld", (long long)p->xids);
    line(m, TOTAL, d, "%lld", (long long)d->memory_bytes);
    if (p->stale) /* unknown: an absent series, which dashboards understand */
        return;
    if (p->utilization >= 0)
        line(m, UTILIZATION, d, "%.2f", 0.01 * p->utilization);
    if (p->memory_used >= 0)
        line(m, USED, d, "%lld", (long long)p->memory_used);
    if (p->power_mw >= 0)
        line(m, POWER, d, "%.3f", 1e-3 * (double)p->power_mw);
    if (p->temperature_c >= 0)
        line(m, TEMPERATURE, d, "%d", p->temperature_c);
}

void api_gpu_metrics(struct pd_buf *b, struct sup *sup)
{
    struct gpu_metrics m;

    for (int i = 0; i < FAMILIES; i++)
        pd_buf_init(&m.b[i], 0);
    sup_device_list(sup, gpu_row, &m);
    for (int i = 0; i < FAMILIES; i++) {
        if (m.b[i].len) {
            pd_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", families[i].name, families[i].help,
                          families[i].name, families[i].type);
            pd_buf_append(b, m.b[i].data, m.b[i].len);
        }
        b->failed = b->failed || m.b[i].failed;
        pd_buf_done(&m.b[i]);
    }
}
