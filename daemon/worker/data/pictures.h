/* daemon/worker/data/pictures.h: private to this module: a set of picture files while it is listed and read. */
#pragma once

#include "daemon/worker/data/cache.h"
#include "daemon/worker/data/set.h"

#define DATA_NAME_BYTES_MAX ((size_t)UINT32_MAX) /* of all names together */
#define DATA_NOTES_MAX ((size_t)256 << 20)       /* of val_annotations.txt */

enum part { TRAIN, VAL, TEST, WHOLE };

struct picture {
    uint64_t at;    /* tar: where its bytes lie */
    uint32_t len;   /* tar: how many */
    uint32_t name;  /* offset into names */
    uint32_t class; /* offset of the class's name in its own name, and its length */
    uint16_t class_len;
    uint8_t part;
    int32_t label;
};

/* Where one decoded picture lies in the cache; the table is the cache's tail. */
struct decoded {
    uint64_t at;
    int32_t height, width; /* 0: it could not be decoded */
    uint32_t sum, reserved;
};

struct data_pictures {
    int dir, tar;    /* one of them, or -1 */
    uint8_t *memory; /* or an archive unpacked from gzip */
    size_t memory_len;
    struct picture *items;
    size_t count, size;
    struct pd_buf names;
    struct pd_buf notes;   /* val_annotations.txt */
    int64_t until_us;      /* of struct data_options */
    bool test;             /* the folder test stands for the validation part */
    bool standard;         /* validation and test are two parts, each of its folder */
    bool val_is_test;      /* and the folder val is the test part; a folder test is not read */
    int64_t unread;        /* pictures of a kind that is not read: .webp and the like */
    char unread_name[256]; /* one of them */
    struct data_cache *cache;
    const uint8_t *cached; /* its body */
    const struct decoded *table;
    int32_t channels, least;
};

static inline const char *data_picture_text(const struct data_pictures *p, const struct picture *i)
{
    return p->names.data + i->name;
}

/* ---- list.c ---- */

/* Lists the folder p->dir, or the archive p->tar (unpacked into p->memory if it is gzip'd), and sorts the
 * pictures by part, class and name. `path` is for messages. PD_ERR_NOT_FOUND: there are none. */
PD_NODISCARD enum pd_err data_pictures_list(struct data_pictures *p, const char *path, struct pd_why *why);
/* Numbers the classes of the training part (of all pictures, where nothing is divided), in byte order, into
 * set->names; given[] are the sizes of the parts. */
PD_NODISCARD enum pd_err data_pictures_classes(struct data_set *set, int64_t given[DATA_SPLITS],
                                               struct pd_why *why);
/* Bytes of the archive. */
PD_NODISCARD enum pd_err data_pictures_pread(const struct data_pictures *p, uint64_t at, void *to, size_t len,
                                             struct pd_why *why);
