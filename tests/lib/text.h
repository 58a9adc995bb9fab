/* tests/lib/text.h: a small file as a text. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/base/buf.h"
#include "kernels/base/file.h"

/* The file "<dir>/<name>" of at most a mebibyte; the caller frees it. Fails the test if it cannot be read. */
static inline char *text_of(const char *dir, const char *name)
{
    char path[512];
    struct pd_buf b;
    struct pd_why why;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    pd_buf_init(&b, 0);
    if (pd_file_read(path, 1 << 20, &b, &why) != PD_OK)
        fail_msg("%s", why.text);
    return pd_buf_take(&b);
}
