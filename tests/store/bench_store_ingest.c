/* How many metric points a second does the writer commit? Clients in closed loops hand in batches and wait
 * for the commit, as HTTP clients do.
 *
 *   bench_store_ingest DIR [clients] [batch] [seconds] [keys]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"

static struct store_writer *writer;
static int batch = 10, keys = 10;
static int64_t end_us;
static _Atomic int64_t points, waits_us, calls;

struct client {
    pthread_t thread;
    int64_t run;
    struct store_metric *metrics;
};

static enum pd_err apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct client *c = ctx;

    return store_metric_append(tx, c->run, 0, c->metrics, (size_t)batch, NULL, why);
}

static void *client(void *arg)
{
    struct client *c = arg;
    char names[64][32];
    int64_t step = 0;

    for (int i = 0; i < keys; i++)
        snprintf(names[i], sizeof names[i], "loss/%d", i);
    c->metrics = calloc((size_t)batch, sizeof *c->metrics);
    while (pd_clock_mono_us() < end_us) {
        struct store_work work = {.lane = STORE_LANE_METRICS, .rows = batch, .apply = apply, .ctx = c};
        struct pd_why why;
        int64_t begin_us = pd_clock_mono_us();

        for (int i = 0; i < batch; i++) {
            int key = i * keys / batch;

            c->metrics[i] = (struct store_metric){
                .key = names[key], .step = step + i, .time_us = begin_us, .value = (double)(step + i) * 0.5};
        }
        step += batch;
        if (store_writer_call(writer, &work, &why) != PD_OK) {
            fprintf(stderr, "%s\n", why.text);
            exit(1);
        }
        points += batch;
        waits_us += pd_clock_mono_us() - begin_us;
        calls++;
    }
    free(c->metrics);
    return NULL;
}

static enum pd_err make_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_job_new job = {.name = "bench", .experiment = "bench", .document = "{}"};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 1, .total_steps = -1};
    int64_t id;
    enum pd_err err = store_job_insert(tx, &job, &id, why);

    return err == PD_OK ? store_run_insert(tx, id, &run, ctx, why) : err;
}

int main(int argc, char **argv)
{
    int clients = argc > 2 ? atoi(argv[2]) : 20, seconds = argc > 4 ? atoi(argv[4]) : 5;
    struct store_writer_options o = {.state_dir = argc > 1 ? argv[1] : "/tmp"};
    struct client *c;
    struct store_stats stats;
    struct pd_why why;
    int64_t begin_us;

    batch = argc > 3 ? atoi(argv[3]) : 10;
    keys = argc > 5 ? atoi(argv[5]) : 10;
    if (batch < 1 || keys < 1 || keys > 64 || clients < 1) {
        fprintf(stderr, "bench_store_ingest DIR [clients] [batch] [seconds] [keys up to 64]\n");
        return 2;
    }
    if (store_writer_start(&o, &writer, &why) != PD_OK) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    c = calloc((size_t)clients, sizeof *c);
    for (int i = 0; i < clients; i++) {
        struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = make_run, .ctx = &c[i].run};

        if (store_writer_call(writer, &work, &why) != PD_OK)
            return 1;
    }
    begin_us = pd_clock_mono_us();
    end_us = begin_us + (int64_t)seconds * 1000000;
    for (int i = 0; i < clients; i++)
        pthread_create(&c[i].thread, NULL, client, &c[i]);
    for (int i = 0; i < clients; i++)
        pthread_join(c[i].thread, NULL);
    store_writer_stats(writer, &stats);
    printf(
        "clients=%d batch=%d points_per_s=%.0f mean_wait_ms=%.2f commits_per_s=%.0f points_per_commit=%.0f "
        "worst_commit_ms=%.1f\n",
        clients, batch, (double)points / ((double)(pd_clock_mono_us() - begin_us) / 1e6),
        (double)waits_us / (double)calls / 1e3, (double)stats.commits / seconds,
        (double)stats.points / (double)stats.commits, (double)stats.commit_us_max / 1e3);
    store_writer_stop(writer);
    free(c);
    return 0;
}
