/* tests/fault/rig.h: a real polyd in a directory of its own, and a plain HTTP client to talk to it.
 *
 * The programs are those beside the test (build/bin). Runs get the diagnostic role of polyd-worker, which is
 * exact: from (step) alone everything that it must have reported is known (rig_expect). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/base/buf.h"

struct rig {
    char dir[64]; /* the state directory is <dir>/state, the daemon's log <dir>/polyd.log */
    char state[80];
    char polyd[512], worker[512];
    uint16_t port;
    pid_t pid; /* 0 = not running */
    int restarts;
    int64_t ready_us_sum, ready_us_max; /* from exec to the first 200 of /readyz */
    const char *args[24];               /* further arguments, NULL-terminated */
    const char *preload;                /* LD_PRELOAD of the daemon; NULL = none */
    pid_t guard;                        /* see rig_init */
    int guard_fd;
};

/* Finds the programs, makes the directory, picks a free port. Exits 77 (skipped) by name if a program is
 * missing. Workers outlive daemons by design: so that none outlives a harness that was killed (by a time-out,
 * say), a guard in a session of its own waits for the end of this process and kills what names the
 * directory. */
void rig_init(struct rig *r, const char *name);
/* Starts the daemon and waits until it is ready; false when it ended instead (status in *ret_status, may be
 * NULL) or was not ready within 20 s. */
bool rig_start(struct rig *r, int *ret_status);
/* The same without waiting. */
void rig_spawn(struct rig *r);
bool rig_ready(struct rig *r, int *ret_status);
/* Signals the daemon and waits for its end; the wait status. After 30 s it is killed, and -1 returned. */
int rig_stop(struct rig *r, int sig);
/* Removes the directory (or keeps it and says so). */
void rig_done(struct rig *r, bool keep);

/* pids of live polyd-worker processes of this rig with `role` in their arguments; at most `max`. */
int rig_workers(const struct rig *r, const char *role, pid_t *ret, int max);
/* Waits until no process of the rig but the daemon itself is left; false after the time. */
bool rig_wait_alone(const struct rig *r, int timeout_ms);

/* ---- HTTP ---- */

struct rig_reply {
    int status;         /* 0 = no (whole) answer */
    struct pd_buf body; /* NUL-terminated if not empty */
};

/* One request on a connection of its own. `headers`: lines with CRLF, or NULL. False when there was no whole
 * answer. The caller calls rig_reply_done. */
bool rig_http(const struct rig *r, const char *method, const char *path, const char *headers,
              const char *body, struct rig_reply *ret);
void rig_reply_done(struct rig_reply *p);
/* The first "key":"text" or "key":number of the JSON text as a number; -1 if there is none. */
int64_t rig_json_int(const char *json, const char *key);
/* The value of "key":"..." copied into out (no escapes); false if there is none. */
bool rig_json_text(const char *json, const char *key, char *out, size_t size);
/* A connected socket for longer talks; -1 on failure. */
int rig_connect(const struct rig *r);

/* ---- what the diagnostic role must report ---- */

struct rig_fit {
    int64_t step;
    double a, b, loss;
};
/* Advances by one step; loss is the one before the step. */
void rig_fit_step(struct rig_fit *f);

/* Checks each "loss", "a" and "b" of every run in the rig's database against the fit, and that a run that
 * succeeded has every step 1..steps. Returns the breaches, printed. */
int rig_check_points(const struct rig *r, int64_t steps);

void rig_sleep_us(int64_t us);
