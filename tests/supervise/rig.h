/* tests/supervise/rig.h: what tests of the supervisor share: a state directory with store, supervisor and
 * real workers in the diagnostic role; runs put into it, waited for and looked at. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/types.h>

#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/supervise.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct store *s;
    struct sup *sup;
    struct sup_options o;
};

struct ids {
    int64_t job, run;
    int slots, max_restarts;
    int64_t limit_us, warn_us;
    const char *register_name;
    int64_t plan_bytes; /* what its plan says; 0 = it has none */
};

void store_up(struct fixture *f);
void sup_up(struct fixture *f);
void all_down(struct fixture *f);
void set(const char *name, int value);
int setup(void **state);
/* Processes that carry our mark. */
int marked(const struct fixture *f, pid_t *ret_pids, int most);
void pause_ms(int ms);
int teardown(void **state);
enum pd_err call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
                 void *ctx);
struct ids submit(struct fixture *f, struct ids ids);
enum pd_err cancel_apply(struct store_tx *tx, void *ctx, struct pd_why *why);
enum pd_err pause_apply(struct store_tx *tx, void *ctx, struct pd_why *why);
enum pd_err resume_apply(struct store_tx *tx, void *ctx, struct pd_why *why);
struct store_run run_now(struct fixture *f, int64_t id);
struct store_run await(struct fixture *f, int64_t run, enum job_run_state state, int seconds);
void await_step(struct fixture *f, int64_t run, int64_t step);
void await_no_process(struct fixture *f);
/* Every step once, in order, with the value that an undisturbed run has. */
void check_series(struct fixture *f, int64_t run, int64_t steps);
void look_at_attempts(struct fixture *f, int64_t run);
/* The worker of an attempt, or its shim. */
pid_t worker_pid(struct fixture *f, bool shim);
extern char run_reason[512]; /* of the run last looked at */
/* Of the attempts last looked at: how many, and the last one's; the last message that there was. */
extern int count_attempts;
extern enum job_cause last_cause;
extern enum job_attempt_state last_state;
extern char last_message[512];
