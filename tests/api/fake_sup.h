/* tests/api/fake_sup.h: makes the supervisor of fake_sup.c; everything else is supervise.h. */
#pragma once

struct sup;

/* Logs of attempts are looked for in `log_dir`. NULL without memory or threads. End with sup_stop. */
struct sup *fake_sup_new(const char *log_dir);
