/* tests/supervise/gpu_rig.h: what tests of the supervisor on a machine with GPUs share: a state directory
 * with store, supervisor and real workers in the diagnostic role, on GPUs that are a text file
 * (tests/devices/fake_nvml.c). */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/supervise.h"
#include "tests/devices/machine.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct store *s;
    struct sup *sup;
    struct sup_options o;
};

/* Of the run and the attempt last looked at. */
extern char run_reason[512];
extern char attempt_devices[4096], attempt_message[512];
extern int attempt_n;
extern enum job_cause attempt_cause;

void up(struct fixture *f);
void down(struct fixture *f);
void set(const char *name, int value);
int setup(void **state);
int marked(const struct fixture *f, const char *what, const char *variable, char *out, size_t size);
void pause_ms(int ms);
int teardown(void **state);
void call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *), void *ctx);
int64_t submit(struct fixture *f, const char *device, int slots);
enum pd_err cancel_apply(struct store_tx *tx, void *ctx, struct pd_why *why);
enum pd_err undrain_apply(struct store_tx *tx, void *ctx, struct pd_why *why);
enum pd_err drain_apply(struct store_tx *tx, void *ctx, struct pd_why *why);
struct store_run await(struct fixture *f, int64_t run, enum job_run_state state);
void cancel(struct fixture *f, int64_t run);
const char *devices_of(struct fixture *f, int64_t run, int n);
struct sup_device device(struct fixture *f, const char *name);
void await_state(struct fixture *f, const char *name, const char *state);
void await_reason(struct fixture *f, int64_t run, const char *reason);
void await_step(struct fixture *f, int64_t run, int64_t step);
