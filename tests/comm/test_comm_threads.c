/* Ranks as threads of one process: what a race detector can look into; and an abort from beside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/comm/comm.h"

struct member {
    pthread_t thread;
    const void *id;
    int rank, ranks;
    struct pk_comm *comm;
    float x[5000];
    enum pd_err err;
    struct pd_why why;
    pthread_barrier_t *ready;
};

static void *work(void *arg)
{
    struct member *m = arg;
    const struct pk_comm_api *api = pk_comm_local();
    const struct pk_comm_options o = {
        .id = m->id, .rank = m->rank, .ranks = m->ranks, .open_us = 20000000, .chunk_bytes = 4096};

    m->err = api->open(NULL, &o, &m->comm, &m->why);
    for (int turn = 0; turn < 20 && m->err == PD_OK; turn++) {
        for (int i = 0; i < 5000; i++)
            m->x[i] = (float)(m->rank + i);
        m->err = api->all_reduce(m->comm, m->x, m->x, turn % 2 ? 5000 : 7, PK_F32, -1, NULL, &m->why);
        if (m->err == PD_OK && m->x[5] != (float)(m->ranks * 5 + m->ranks * (m->ranks - 1) / 2))
            m->err = PD_ERR_CORRUPT;
    }
    if (m->ready && m->err == PD_OK) {
        pthread_barrier_wait(m->ready);
        if (m->rank == 0) /* rank 1 stays away; somebody breaks it off */
            m->err = api->all_reduce(m->comm, m->x, m->x, 5000, PK_F32, -1, NULL, &m->why);
    }
    return NULL;
}

static void go(int ranks, pthread_barrier_t *ready, struct member *m)
{
    static uint8_t id[PK_COMM_ID_MAX];
    struct pd_why why;

    assert_int_equal(pk_comm_local()->make_id(id, &why), PD_OK);
    for (int i = 0; i < ranks; i++) {
        m[i] = (struct member){.id = id, .rank = i, .ranks = ranks, .ready = ready};
        assert_int_equal(pthread_create(&m[i].thread, NULL, work, &m[i]), 0);
    }
}

static void test_threads_sum_together(void **state)
{
    struct member *m = calloc(4, sizeof *m);

    (void)state;
    go(4, NULL, m);
    for (int i = 0; i < 4; i++) {
        pthread_join(m[i].thread, NULL);
        if (m[i].err != PD_OK)
            fail_msg("rank %d: %s", i, m[i].why.text);
    }
    for (int i = 0; i < 4; i++)
        pk_comm_local()->close(m[i].comm);
    free(m);
}

static void test_an_abort_ends_a_call_in_progress(void **state)
{
    struct member *m = calloc(2, sizeof *m);
    pthread_barrier_t ready;

    (void)state;
    pthread_barrier_init(&ready, NULL, 3);
    go(2, &ready, m);
    pthread_barrier_wait(&ready);
    usleep(20000);
    pk_comm_local()->abort(m[1].comm, "enough");
    for (int i = 0; i < 2; i++)
        pthread_join(m[i].thread, NULL);
    assert_int_equal(m[0].err, PD_ERR_CLOSED);
    assert_non_null(strstr(m[0].why.text, "rank 1: enough"));
    for (int i = 0; i < 2; i++)
        pk_comm_local()->close(m[i].comm);
    pthread_barrier_destroy(&ready);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_sum_together),
                                       cmocka_unit_test(test_an_abort_ends_a_call_in_progress)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
