/* daemon/worker/data/have.h: what lies below a data root, and which data sets it can be read as.
 *
 * Names decide what is tried; then the set is opened as a job would open it (headers only), so that what is
 * listed as fitting is what a dry run accepts. Nothing outside a root is looked at; symbolic links are not
 * followed. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"

#define DATA_HAVE_DEPTH 4        /* folders below where it begins */
#define DATA_HAVE_ENTRIES 500    /* listed in all */
#define DATA_HAVE_FOLDERS 2000   /* looked into */
#define DATA_HAVE_NAMES 10000    /* read of one folder */
#define DATA_HAVE_US 4000000     /* for everything */
#define DATA_HAVE_SET_US 1500000 /* for opening one data set */
#define DATA_HAVE_FITS 12        /* kinds of data set that one place is tried as */

/* One kind of data set that a place was tried as. */
struct data_fit {
    const char *dataset; /* its name in a job document; static */
    const char *split;   /* the rule of data.split that it takes: "standard"; static */
    bool fits, checked;  /* checked: it was opened, not only recognised by its names */
    char missing[256];   /* unless it fits: what is missing or wrong */
};

/* Tries the kinds of `forms` (bits 1 << enum data_dataset) on the file or folder `path`
 * ("<root>/<relative>"). Returns how many it filled. */
size_t data_fits(const struct data_root *root, const char *path, unsigned forms, int64_t until_us,
                 struct data_fit ret[DATA_HAVE_FITS]);

/* Appends
 * {"truncated":..,"roots":[{"name","error","truncated","entries":[{"path","kind","bytes","fits","almost",
 * "note"}]}]}. `path`: only what lies there ("<root>/<relative>"), or NULL. A root that cannot be opened has
 * its error; PD_ERR_INVALID: a `path` that cannot be. */
PD_NODISCARD enum pd_err data_have(const struct data_root *roots, size_t count, const char *path,
                                   struct pd_buf *out, struct pd_why *why);
