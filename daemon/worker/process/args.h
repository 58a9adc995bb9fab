/* daemon/worker/process/args.h: "--name value" arguments of the roles. Private to the module. */
#pragma once

#include <stdint.h>

/* The value after `name`, or NULL. */
const char *args_get(int argc, char **argv, const char *name);
/* The n-th value (from 0) of a repeated name, or NULL. */
const char *args_nth(int argc, char **argv, const char *name, int n);
/* A number, `missing` if absent or no number. */
int64_t args_int(int argc, char **argv, const char *name, int64_t missing);
