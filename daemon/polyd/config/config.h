/* daemon/polyd/config/config.h: the daemon's settings.
 *
 * One const table (table.c) holds every setting: section, key, type, default, range, meaning. Four
 * layers, later wins: default, file (INI), environment (POLYD_<SECTION>_<KEY>), flag
 * (--section.key=value or a short one). The same table generates the help text, the sample file and GET
 * /api/v1/config. Loaded once at start by the main thread; const afterwards, so that any thread may read it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

enum config_action {
    CONFIG_ACTION_RUN,     /* start the daemon, or run the command in `args` */
    CONFIG_ACTION_HELP,    /* --help: print config_help */
    CONFIG_ACTION_VERSION, /* --version */
    CONFIG_ACTION_CHECK,   /* --check-config: print config_report_text, exit 0 or 1 */
    CONFIG_ACTION_SAMPLE,  /* --sample-config: print config_sample */
    CONFIG_ACTION_MANUAL,  /* --manual: print config_manual */
    CONFIG_ACTION_FORMAT,  /* --manual-conf: print config_manual_conf */
    CONFIG_ACTION_INIT     /* --init: run; if the state folder has lost its database, create a new one */
};

enum config_source { CONFIG_SOURCE_DEFAULT, CONFIG_SOURCE_FILE, CONFIG_SOURCE_ENV, CONFIG_SOURCE_FLAG };

struct config_list {
    size_t count;
    const char *const *items;
};

struct config_root {
    const char *name; /* 1-64 of A-Za-z0-9._- */
    const char *path; /* absolute */
};

#define CONFIG_CPU_SLOTS_MAX 64

enum config_serve_device { CONFIG_SERVE_CPU, CONFIG_SERVE_CUDA };
enum config_weights { CONFIG_WEIGHTS_F32, CONFIG_WEIGHTS_BF16 };

struct config {
    enum config_action action;
    /* Positional arguments, in order: "token", "create", ...; NULL-terminated, `arg_count` of them. */
    const char *const *args;
    size_t arg_count;
    const char *file; /* the file that was read, or NULL */

    struct {
        const char *listen; /* address: IPv4 or IPv6 text; beyond loopback only with insecure_listen */
        int64_t insecure_listen;
        int64_t port;    /* 0: the kernel chooses */
        int64_t readers; /* threads that read the store for HTTP */
        int64_t read_timeout_ms;
        int64_t threads; /* of the HTTP pool */
        int64_t max_body_bytes;
        int64_t max_upload_bytes;
        int64_t max_connections;
        int64_t max_connections_per_address; /* 0: no limit of its own */
        int64_t reserved_connections;        /* beyond max_connections, for probes and /metrics */
        int64_t min_body_rate;               /* bytes a second; 0: no limit */
        /* Host values to accept in addition to loopback names and `listen` */
        struct config_list allowed_hosts;
        struct config_list allowed_origins; /* Origin values to accept in addition to polyd's own */
    } server;
    struct {
        const char *dir; /* serve the page from here; NULL: the embedded files */
    } web;
    struct {
        const char *dir; /* absolute; see config_load */
    } state;
    struct {
        size_t count;
        const struct config_root *roots; /* in the order of definition, flags and environment last */
        const char *const *names;        /* the same names, for struct job_env */
    } data;
    struct {
        int64_t cpu_slots;
        int64_t threads_per_slot; /* never 0 after loading: cores / cpu_slots, at least 1 */
        struct config_list gpus;  /* "auto", "all", "none", or indices and UUIDs */
        const char *nvml;         /* the library; NULL: the driver's */
        int64_t gpu_sample_ms;
    } devices;
    struct {
        int64_t level; /* enum pd_log_level */
    } log;
    struct {
        const char *path; /* polyd-worker, absolute */
        int64_t grace_s;  /* grace period between the request to stop and the kill */
    } worker;
    struct {
        int64_t silence_s; /* time without a message after which an external run is lost */
    } runs;
    struct {
        int64_t max_bytes; /* size of the folder cache in the state folder */
    } cache;
    struct {
        int64_t submissions; /* pending writes in the first queue */
        int64_t updates;     /* in the second: reports of workers */
        int64_t metrics;     /* in the third: batches of metric points */
        int64_t jobs;        /* jobs not ended; more are refused with 429 */
        int64_t sse_clients;
    } limits;
    struct {
        int64_t checkpoint_external; /* 0: polyd checkpoints its WAL; 1 is not available yet */
    } store;
    struct {
        int64_t best;   /* default of a job's /train/keep/best */
        int64_t latest; /* likewise */
    } keep;
    struct {
        int64_t queue;        /* inference requests waiting per model */
        int64_t timeout_ms;   /* deadline of requests without one */
        int64_t device;       /* enum config_serve_device */
        int64_t weights;      /* enum config_weights */
        int64_t memory_bytes; /* memory of all loaded models; 0 = no limit */
        /* stored context of a completion: 0 = the smaller form, 1 = a cache, 2 = a constant-size state */
        int64_t decode;
        int64_t batch_delay_us; /* how long a classification request waits for others to form a batch */
    } serve;
    struct config_private *owner; /* private */
};

struct config_problem {
    char *where; /* "polyd.conf:12", "POLYD_SERVER_PORT", "--port"; owned by the report */
    char *what;  /* a sentence; owned by the report */
};

struct config_report {
    struct config_problem *errors;
    size_t error_count;
    struct config_problem *warnings;
    size_t warning_count;
    bool failed; /* private: memory ran out while reporting */
};

void config_report_init(struct config_report *report);
void config_report_done(struct config_report *report);
/* "where: what" a line, errors first, warnings with "warning: "; appended. */
void config_report_text(const struct config_report *report, struct pd_buf *out);

/* Reads all layers. argv[0] is skipped. `env` is an environ-like list (NULL: none).
 * The file is --config, else POLYD_CONFIG, else $CONFIGURATION_DIRECTORY/polyd.conf or
 * /etc/polyd/polyd.conf if that exists, else $XDG_CONFIG_HOME/polyd/polyd.conf (~/.config) if that exists.
 * state.dir defaults to $STATE_DIRECTORY; for root under systemd (INVOCATION_ID set) /var/lib/polyd;
 * otherwise $XDG_STATE_HOME/polyd or ~/.local/state/polyd.
 * PD_ERR_INVALID: every error is in the report and *ret_config is untouched. With --help,
 * --version or --sample-config the other layers are not read. The report must be initialised. */
PD_NODISCARD enum pd_err config_load(int argc, const char *const *argv, const char *const *env,
                                     struct config **ret_config, struct config_report *report);
struct config *config_free(struct config *c);

/* Prepares a reloaded configuration for a running daemon, which can change data roots, [keep] and log.level
 * only. All other settings are reset to those of `now`, which must outlive `fresh`; *ret_left (appended)
 * lists those that differed: "server.port, devices.cpu_slots". */
void config_renew(struct config *fresh, const struct config *now, struct pd_buf *ret_left);

/* One line of GET /api/v1/config. */
struct config_setting {
    const char *section;
    const char *key;
    const char *value; /* as text; "" if unset */
    enum config_source source;
    const char *origin; /* "default", "/etc/polyd/polyd.conf:12", "POLYD_SERVER_PORT", "--port" */
    const char *meaning;
};
/* Every setting in the order of the table, data roots last. Borrowed until config_free. */
size_t config_setting_count(const struct config *c);
struct config_setting config_setting_at(const struct config *c, size_t i);

/* "default", "file", "environment", "flag". Static. */
const char *config_source_name(enum config_source s);

/* The path of a data root, or NULL. Borrowed until config_free. */
const char *config_root_path(const struct config *c, const char *name);

/* The commands of polyd other than running the daemon; main.c executes them. The last row has a NULL name.
 */
extern const struct config_command {
    const char *name;
    const char *args; /* "[--dry-run]"; "" if there are none */
    const char *meaning;
} config_commands[];

/* `polyd --help`, complete; appended. */
void config_help(struct pd_buf *out);
/* The manual pages polyd(8) and polyd.conf(5), generated from the tables of config_help; appended. */
void config_manual(struct pd_buf *out);
void config_manual_conf(struct pd_buf *out);
/* The sample file (deploy/polyd.conf): every setting with its meaning, commented out at its
 * default; appended. */
void config_sample(struct pd_buf *out);

/* Parses arbitrary bytes as a file. Never fails on any input. */
void config_fuzz(const uint8_t *bytes, size_t len);
