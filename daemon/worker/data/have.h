/* daemon/worker/data/have.h: lists a data root, with the data sets that each entry can be read as.
 *
 * File names select the candidates; each candidate is then opened as a job would open it (headers only), so that an
 * entry is listed as fitting exactly if a dry run accepts it. Nothing outside a root is read; symbolic links are not
 * followed. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"

#define DATA_HAVE_DEPTH 4        /* levels of folders below the starting point */
#define DATA_HAVE_ENTRIES 500    /* entries of a listing */
#define DATA_HAVE_FOLDERS 2000   /* folders read for a listing */
#define DATA_HAVE_NAMES 10000    /* names read of one folder */
#define DATA_HAVE_US 4000000     /* us for a listing */
#define DATA_HAVE_SET_US 1500000 /* us for opening one data set */
#define DATA_HAVE_FITS 12        /* kinds of data set tried for one path */

/* One kind of data set tried for a path. */
struct data_fit {
    const char *dataset; /* its name in a job document; static */
    const char *split;   /* a value of data.split that suits it: "standard"; static */
    bool fits, checked;  /* checked: the set was opened; else only its names were recognised */
    char missing[256];   /* unless it fits: what is missing or wrong */
};

/* Tries the kinds in `forms` (bits 1 << enum data_dataset) on the file or folder `path` ("<root>/<relative>"), until
 * `until_us` on the monotonic clock. Returns the number of entries of ret that it filled. */
size_t data_fits(const struct data_root *root, const char *path, unsigned forms, int64_t until_us,
                 struct data_fit ret[DATA_HAVE_FITS]);

/* Appends the listing to `out` as JSON:
 *   {"truncated":..,"roots":[{"name","error","truncated","entries":[{"path","kind","bytes","fits","almost","note"}]}]}
 * `path` ("<root>/<relative>") restricts it to one file or folder; NULL: all roots. A root that cannot be opened has
 * an "error". PD_ERR_INVALID: `path` cannot be opened. */
PD_NODISCARD enum pd_err data_have(const struct data_root *roots, size_t count, const char *path,
                                   struct pd_buf *out, struct pd_why *why);
