/* daemon/polyd/config/table.h: the rows behind config.h; not for other modules. */
#pragma once

#include "daemon/polyd/config/config.h"

enum config_type {
    CONFIG_T_ADDRESS, /* IPv4 or IPv6 text */
    CONFIG_T_INT,
    CONFIG_T_PATH, /* made absolute: against the file's folder, or the working directory */
    CONFIG_T_WORD, /* one of `words` */
    CONFIG_T_LIST  /* separated by commas or blanks */
};

struct config_row {
    const char *section, *key;
    enum config_type type;
    size_t offset;
    const char *def; /* as text; NULL: unset, or computed (`def_text` says how) */
    const char *def_text;
    int64_t min, max;         /* of integers */
    const char *const *words; /* ends with NULL; the value stored is values[i] */
    const int64_t *values;
    unsigned known_only; /* words from this index on are known but not available; 0: all are */
    const char *flag;    /* short form without the dashes, or NULL */
    const char *bare;    /* what the short form means without a value; NULL: it needs one */
    const char *arg;     /* what the help calls the value */
    const char *meaning;
};

extern const struct config_row config_rows[];
extern const size_t config_row_count;

#define CONFIG_MAX_ROOTS 64
#define CONFIG_MAX_LIST 64
#define CONFIG_ROOT_NAME 48 /* libinih cuts longer names */
#define CONFIG_MAX_FILE ((size_t)1024 * 1024)
#define CONFIG_MAX_LINE 4096
