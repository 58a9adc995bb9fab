/* tests/data/box.h: a folder of files made by a test, named as the data root "box". */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/set.h"
#include "tests/lib/batch.h"

static char folder[64], cache_folder[80];
static const struct data_root box_root = {"box", folder};

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-sets-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(cache_folder, sizeof cache_folder, "%s/kept", folder);
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* Writes a file, making its folders. */
static inline void put(const char *name, const void *bytes, size_t len, bool zip)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    if (zip) {
        gzFile f = gzopen(path, "wb");

        assert_non_null(f);
        assert_int_equal(gzwrite(f, bytes, (unsigned)len), len);
        assert_int_equal(gzclose(f), Z_OK);
    } else {
        FILE *f = fopen(path, "wb");

        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, len, f), len);
        assert_int_equal(fclose(f), 0);
    }
}

static inline void want_open(const struct data_options *o, struct data_set **ret)
{
    struct pd_why why = {""};

    if (data_open(o, false, ret, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static inline void want_refused(const struct data_options *o, enum pd_err want, const char *says)
{
    struct data_set *set = NULL;
    struct pd_why why = {""};
    enum pd_err err = data_open(o, false, &set, &why);

    if (err != want || !strstr(why.text, says))
        fail_msg("wanted %s with '%s', got %s: %s", pd_err_name(want), says, pd_err_name(err), why.text);
}

/* `batches` batches from `first` on, one after the other: images then targets, or tokens then targets. */
static inline void *draw(const struct data_set *set, enum data_split split, int32_t batch, int64_t first,
                         int batches, int threads, size_t *ret_len)
{
    const struct data_info *i = data_info(set);
    size_t one = i->kind == DATA_IMAGES ? (size_t)i->channels * (size_t)i->height * (size_t)i->width
                                        : (size_t)i->context;
    size_t input = (size_t)batch * one * (i->kind == DATA_IMAGES ? 1 : 4);
    size_t targets = (size_t)batch * (i->kind == DATA_IMAGES ? 1 : (size_t)i->context);
    size_t each = input + targets * 4;
    char *all = malloc(each * (size_t)batches);
    struct data_loader *l = NULL;
    struct pd_why why = {""};

    assert_non_null(all);
    if (data_loader_start(set, split, batch, 3, first, threads, &l, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (int b = 0; b < batches; b++) {
        const struct data_batch *got;

        if (data_loader_next(l, &got, &why) != PD_OK)
            fail_msg("%s", why.text);
        memcpy(all + (size_t)b * each, data_batch_find(got, "input")->data, input);
        memcpy(all + (size_t)b * each + input, targets_of(got), targets * 4);
    }
    data_loader_free(l);
    *ret_len = each * (size_t)batches;
    return all;
}

/* Both sets give the same `batches` batches. */
static inline void want_same(const struct data_set *a, int a_threads, const struct data_set *b, int b_threads,
                             enum data_split split, int batches)
{
    size_t n, m;
    void *x = draw(a, split, 4, 0, batches, a_threads, &n), *y = draw(b, split, 4, 0, batches, b_threads, &m);

    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}
