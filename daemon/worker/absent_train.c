/* A build without the training rooms: the role says so instead of pretending. */
#include <stdio.h>

#include "daemon/worker/attempt.h"
#include "daemon/worker/worker.h"

void role_train(struct attempt *a, struct role_result *ret)
{
    (void)a;
    ret->cause = "failed";
    snprintf(ret->text, sizeof ret->text, "this build of polyd-worker cannot train");
}

int worker_plan_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "this build of polyd-worker cannot plan\n");
    return 1;
}

int worker_digit_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "this build of polyd-worker cannot draw\n");
    return 1;
}
