/* Questions to planners: how many processes answer them, and how long they may take. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "kernels/base/buf.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "tests/lib/jump.h"
#include "tests/supervise/rig.h"

struct planned {
    pthread_mutex_t lock;
    int good, invalid, late;
    char why[256]; /* of the last error */
};

static void note_plan(void *ctx, enum pd_err err, const struct pd_why *why, const char *plan)
{
    struct planned *p = ctx;

    pthread_mutex_lock(&p->lock);
    p->good += err == PD_OK && !strncmp(plan, "{\"total_bytes\":5}", 17);
    p->invalid += err == PD_ERR_INVALID;
    p->late += err == PD_ERR_TIMEOUT;
    if (err != PD_OK)
        snprintf(p->why, sizeof p->why, "%.255s", why->text);
    pthread_mutex_unlock(&p->lock);
}

static void ask_plans(struct fixture *f, struct planned *p, const char *document, const char *digest, int n)
{
    const struct sup_planning asked = {.document = document,
                                       .len = strlen(document),
                                       .plan_digest = digest,
                                       .device = "cpu",
                                       .slots = 1,
                                       .refresh = true,
                                       .done = note_plan,
                                       .ctx = p};
    struct pd_why why;

    for (int i = 0; i < n; i++)
        assert_int_equal(sup_plan(f->sup, &asked, &why), PD_OK);
}

/* The supervisor with this script as its worker; `path` is that of the script. */
static void worker_up(struct fixture *f, const char *script, char path[96])
{
    FILE *out;

    all_down(f);
    snprintf(path, 96, "%s/planner", f->dir);
    out = fopen(path, "w");
    assert_non_null(out);
    fputs(script, out);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(chmod(path, 0700), 0);
    f->o.worker_path = path;
    store_up(f);
    sup_up(f);
}

/* A worker that counts how often it is started, answers once the file "answer" exists, and refuses the document
 * "bad". */
static void test_plans_one_planner_answers_all_who_wait_for_the_same(void **state)
{
    static const char script[] = "#!/bin/sh\necho >>\"${0%/*}/started\"\nread -r document\n"
                                 "while [ ! -e \"${0%/*}/answer\" ]; do sleep 0.02; done\n"
                                 "[ \"$document\" != bad ] || exit 3\necho '{\"total_bytes\":5}'\n";
    struct fixture *f = *state;
    struct planned p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    char worker[96], started[96], answer[96];
    struct pd_why why;
    struct pd_buf text;

    worker_up(f, script, worker);
    snprintf(started, sizeof started, "%s/started", f->dir);
    snprintf(answer, sizeof answer, "%s/answer", f->dir);
    ask_plans(f, &p, "good\n", "d1", 6); /* one process, and one for those who asked while it ran */
    ask_plans(f, &p, "good\n", "d2", 1);
    ask_plans(f, &p, "bad\n", "d3", 3); /* an error may be of what the digest leaves out: each for itself */
    assert_int_equal(pd_file_replace(answer, "", 0, 0600, &why), PD_OK);
    for (int i = 0; i < 2000; i++) {
        bool all;

        pthread_mutex_lock(&p.lock);
        all = p.good + p.invalid == 10;
        pthread_mutex_unlock(&p.lock);
        if (all)
            break;
        pause_ms(5);
    }
    assert_int_equal(p.good, 7);
    assert_int_equal(p.invalid, 3);
    pd_buf_init(&text, 0);
    assert_int_equal(pd_file_read(started, 1 << 16, &text, &why), PD_OK);
    assert_int_equal(text.len, 2 + 1 + 3); /* a line each */
    pd_buf_done(&text);
    all_down(f);
    f->o.worker_path = NULL;
}

/* The worker's clock does not move, so it is still there. */
static void test_plans_a_planner_that_takes_too_long_is_stopped_with_the_reason(void **state)
{
    struct fixture *f = *state;
    struct planned p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    char worker[96], started[96];
    int left = 2000;

    worker_up(f, "#!/bin/sh\n: >\"${0%/*}/started\"\nexec sleep 600\n", worker);
    snprintf(started, sizeof started, "%s/started", f->dir);
    ask_plans(f, &p, "slow\n", "d1", 1);
    while (access(started, F_OK) != 0 && left-- > 0)
        pause_ms(5);
    jump_mono_us = JUMP_HOUR_US;
    for (bool over = false; !over && left-- > 0; pause_ms(5)) {
        pthread_mutex_lock(&p.lock);
        over = p.why[0];
        pthread_mutex_unlock(&p.lock);
    }
    assert_string_equal(p.why, "a plan takes longer than 120 s, so its worker was stopped");
    assert_int_equal(p.late, 1);
    all_down(f);
    jump_mono_us = 0;
    f->o.worker_path = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plans_one_planner_answers_all_who_wait_for_the_same, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_plans_a_planner_that_takes_too_long_is_stopped_with_the_reason,
                                        setup, teardown)};

    if (!getenv("POLYD_TEST_LOUD"))
        pd_log_set_level(PD_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
