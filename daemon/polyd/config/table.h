/* daemon/polyd/config/table.h: the table of settings; private to this module. */
#pragma once

#include "daemon/polyd/config/config.h"

enum config_type {
    CONFIG_T_ADDRESS, /* IPv4 or IPv6 text */
    CONFIG_T_INT,
    CONFIG_T_PATH,   /* made absolute relative to the file's folder, or to the working directory */
    CONFIG_T_CHOICE, /* one of `choices` */
    CONFIG_T_LIST    /* separated by commas or blanks */
};

struct config_row {
    const char *section, *key;
    enum config_type type;
    size_t offset;
    const char *def; /* as text; NULL: unset, or computed as described by `def_text` */
    const char *def_text;
    int64_t min, max;           /* of integers */
    const char *const *choices; /* ends with NULL; the value stored is values[i] */
    const int64_t *values;
    unsigned known_only; /* values from this index on are not available in this version; 0: all are */
    const char *flag;    /* short form without the dashes, or NULL */
    const char *bare;    /* value of the short form without an argument; NULL: it needs one */
    const char *arg;     /* placeholder for the value in the help */
    const char *meaning;
};

extern const struct config_row config_rows[];
extern const size_t config_row_count;

#define CONFIG_MAX_ROOTS 64
#define CONFIG_MAX_LIST 64
#define CONFIG_ROOT_NAME 48 /* libinih cuts longer names */
#define CONFIG_MAX_FILE ((size_t)1024 * 1024)
#define CONFIG_MAX_LINE 4096
