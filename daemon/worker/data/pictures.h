/* daemon/worker/data/pictures.h: private to this module: the index of a folder or archive of picture files. */
#pragma once

#include "daemon/worker/data/cache.h"
#include "daemon/worker/data/set.h"

#define DATA_NAME_BYTES_MAX ((size_t)UINT32_MAX) /* bytes of all names together */
#define DATA_NOTES_MAX ((size_t)256 << 20)       /* bytes of val_annotations.txt */

enum part { TRAIN, VAL, TEST, WHOLE };

struct picture {
    uint64_t at;    /* tar: offset of its bytes */
    uint32_t len;   /* tar: their number */
    uint32_t name;  /* offset into names */
    uint32_t class; /* offset of the class's name in its own name, and its length */
    uint16_t class_len;
    uint8_t part;
    int32_t label;
};

/* Position of one decoded picture in the cache file; the table of these ends the file. */
struct decoded {
    uint64_t at;
    int32_t height, width; /* 0: it could not be decoded */
    uint32_t sum, reserved;
};

struct data_pictures {
    int dir, tar;    /* descriptor of the folder or of the archive; -1: not open */
    uint8_t *memory; /* the archive decompressed from gzip, instead of `tar` */
    size_t memory_len;
    struct picture *items;
    size_t count, size;
    struct pd_buf names;
    struct pd_buf notes; /* val_annotations.txt */
    int64_t until_us;    /* deadline, as in struct data_options */
    bool test;           /* the folder `test` serves as validation part */
    bool standard;       /* validation and test are two parts, each from a folder of its own */
    bool val_is_test;    /* with `standard`: the folder `val` is the test part, a folder `test` is not read */
    struct data_passed unread; /* pictures in formats that polyd does not read, such as .webp */
    struct data_passed links;  /* links in the archive that are named as pictures */
    struct data_cache *cache;
    const uint8_t *cached; /* content of the cache */
    const struct decoded *table;
    int32_t channels, least;
};

static inline const char *data_picture_text(const struct data_pictures *p, const struct picture *i)
{
    return p->names.data + i->name;
}

/* ---- list.c ---- */

/* Lists the folder p->dir or the archive p->tar (decompressed to p->memory if it is gzip'd), and sorts the pictures by
 * part, class and name. `path` is for messages. PD_ERR_NOT_FOUND: there are no pictures. */
PD_NODISCARD enum pd_err data_pictures_list(struct data_pictures *p, const char *path, struct pd_why *why);
/* Writes the class names of the training part (of all pictures, if the folder has no parts) to set->names in byte order,
 * numbers the labels accordingly, and writes the sizes of the parts to given[]. */
PD_NODISCARD enum pd_err data_pictures_classes(struct data_set *set, int64_t given[DATA_SPLITS],
                                               struct pd_why *why);
/* Reads `len` bytes of the archive at offset `at`. */
PD_NODISCARD enum pd_err data_pictures_pread(const struct data_pictures *p, uint64_t at, void *to, size_t len,
                                             struct pd_why *why);
