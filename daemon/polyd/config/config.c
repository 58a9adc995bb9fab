/* Four layers over one table: defaults, file, environment, flags. Every value goes through load_value,
 * whatever its layer, and leaves its text and origin for GET /api/v1/config. */
#include "daemon/polyd/config/load.h"

#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Defaults ---- */

static bool readable(const char *path)
{
    return access(path, R_OK) == 0;
}

/* $var/rest, or ~/home_rest if the variable is unset; false without either. */
static bool user_path(const char *const *env, const char *var, const char *rest, const char *home_rest,
                      char *out, size_t size)
{
    const char *base = load_env_get(env, var), *home = load_env_get(env, "HOME");

    /* The XDG rules: a relative path there is to be ignored. */
    if (base && base[0] == '/')
        return (size_t)snprintf(out, size, "%s/%s", base, rest) < size;
    if (home && home[0] == '/')
        return (size_t)snprintf(out, size, "%s/%s", home, home_rest) < size;
    return false;
}

/* Which file to read; NULL: none. `found` holds PATH_MAX bytes. */
static const char *choose_file(const char *flag, const char *const *env, char *found)
{
    const char *folder = load_env_get(env, "CONFIGURATION_DIRECTORY");

    if (flag)
        return flag;
    if (load_env_get(env, "POLYD_CONFIG"))
        return load_env_get(env, "POLYD_CONFIG");
    if (folder && (size_t)snprintf(found, PATH_MAX, "%s/polyd.conf", folder) < PATH_MAX && readable(found))
        return found;
    strcpy(found, "/etc/polyd/polyd.conf");
    if (readable(found))
        return found;
    if (user_path(env, "XDG_CONFIG_HOME", "polyd/polyd.conf", ".config/polyd/polyd.conf", found, PATH_MAX) &&
        readable(found))
        return found;
    return NULL;
}

static void default_state_dir(struct load *l, const char *const *env)
{
    char path[PATH_MAX];
    const char *dir = load_env_get(env, "STATE_DIRECTORY");
    size_t i = load_row("state", "dir");

    snprintf(l->origin, sizeof l->origin, "default");
    if (dir) /* systemd separates several by colons; the first is polyd's */
        snprintf(path, sizeof path, "%.*s", (int)strcspn(dir, ":"), dir);
    else if (geteuid() == 0 && load_env_get(env, "INVOCATION_ID"))
        strcpy(path, "/var/lib/polyd");
    else if (!user_path(env, "XDG_STATE_HOME", "polyd", ".local/state/polyd", path, sizeof path)) {
        load_error(l, "state.dir: neither XDG_STATE_HOME nor HOME is set; name it with --state-dir");
        return;
    }
    load_value(l, i, path);
}

static void default_worker(struct load *l)
{
    static const char *const places[] = {"polyd-worker", "../libexec/polyd/polyd-worker",
                                         "../libexec/polyd-worker"};
    char self[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    snprintf(l->origin, sizeof l->origin, "default");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s/%s", self, places[i]);
        if (access(path, X_OK) == 0)
            break;
        if (i + 1 == sizeof places / sizeof *places) {
            snprintf(path, sizeof path, "%s/%s", self, places[0]);
            load_warning(l, "worker.path: there is no polyd-worker in the folder of %s", self);
        }
    }
    load_value(l, load_row("worker", "path"), path);
}

static void set_defaults(struct load *l)
{
    l->source = CONFIG_SOURCE_DEFAULT;
    snprintf(l->origin, sizeof l->origin, "default");
    for (size_t i = 0; i < config_row_count; i++) {
        if (config_rows[i].def)
            load_value(l, i, config_rows[i].def);
        else
            l->p->settings[i] = (struct setting){"", CONFIG_SOURCE_DEFAULT, "default", 0};
    }
}

static int64_t cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

static bool is_loopback(const char *address)
{
    struct in6_addr v6;
    struct in_addr v4;

    if (inet_pton(AF_INET, address, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &v6) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127));
}

/* polyd does not authenticate clients, so listening beyond loopback needs an explicit setting. */
static void check_listen(struct load *l)
{
    const struct config *c = l->c;
    bool serves = c->action == CONFIG_ACTION_CHECK || !c->arg_count;

    if (is_loopback(c->server.listen))
        return;
    snprintf(l->origin, sizeof l->origin, "%s", l->p->settings[load_row("server", "listen")].origin);
    if (c->server.insecure_listen)
        load_warning(
            l, "server.listen = %s is not a loopback address: every client that reaches it can submit jobs",
            c->server.listen);
    else if (serves)
        load_error(
            l,
            "server.listen = %s is not a loopback address, and polyd does not authenticate clients: every "
            "client that reaches it could submit jobs and read all results. Listen on 127.0.0.1 behind a "
            "proxy or a tunnel that authenticates, or accept this with --insecure-listen "
            "(server.insecure_listen = yes)",
            c->server.listen);
}

/* Values that are computed after all layers were read. */
static void finish(struct load *l, const char *const *env)
{
    struct config *c = l->c;

    l->source = CONFIG_SOURCE_DEFAULT;
    if (!c->state.dir)
        default_state_dir(l, env);
    if (!c->worker.path)
        default_worker(l);
    if (!c->devices.threads_per_slot) {
        struct setting *s = &l->p->settings[load_row("devices", "threads_per_slot")];
        char text[32];
        c->devices.threads_per_slot = cores() / c->devices.cpu_slots > 1 ? cores() / c->devices.cpu_slots : 1;
        if (c->devices.threads_per_slot > 256)
            c->devices.threads_per_slot = 256;
        snprintf(text, sizeof text, "%lld", (long long)c->devices.threads_per_slot);
        s->value = load_copy(l, text);
    }
    check_listen(l);
    c->data.roots = l->p->roots;
    c->data.names = l->p->names;
}

/* ---- Public ---- */

static struct config *config_new(void)
{
    struct config *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->owner = calloc(1, sizeof *c->owner);
    if (c->owner)
        c->owner->arena = pd_arena_new();
    if (!c->owner || !c->owner->arena)
        return config_free(c);
    return c;
}

struct config *config_free(struct config *c)
{
    if (c) {
        if (c->owner)
            pd_arena_free(c->owner->arena);
        free(c->owner);
        free(c);
    }
    return NULL;
}

enum pd_err config_load(int argc, const char *const *argv, const char *const *env, struct config **ret_config,
                        struct config_report *report)
{
    static const char *const no_args[] = {NULL};
    struct load *l = calloc(1, sizeof *l);
    const char *file = NULL;
    char found[PATH_MAX];
    enum pd_err err = PD_ERR_NOMEM;

    _Static_assert(CONFIG_MAX_ROWS >= 32, "room for every row");
    if (!l)
        return PD_ERR_NOMEM;
    l->c = config_new();
    if (!l->c)
        goto out;
    l->p = l->c->owner;
    l->report = report;
    l->c->args = no_args;
    set_defaults(l);
    load_flags(l, argc, argv, false, &file);
    if (l->c->action == CONFIG_ACTION_RUN || l->c->action == CONFIG_ACTION_CHECK ||
        l->c->action == CONFIG_ACTION_INIT) {
        file = choose_file(file, env, found);
        if (file)
            load_file(l, file);
        load_env(l, env);
        load_flags(l, argc, argv, true, &file);
        finish(l, env);
    }
    if (l->nomem || report->failed)
        goto out;
    err = report->error_count ? PD_ERR_INVALID : PD_OK;
    if (err == PD_OK) {
        *ret_config = l->c;
        l->c = NULL; /* moved to the caller */
    }
out:
    config_free(l->c);
    free(l);
    return err;
}

static bool renewable(const struct config_row *row)
{
    return !strcmp(row->section, "keep") || (!strcmp(row->section, "log") && !strcmp(row->key, "level"));
}

static size_t size_of(enum config_type type)
{
    return type == CONFIG_T_INT || type == CONFIG_T_CHOICE ? sizeof(int64_t)
           : type == CONFIG_T_LIST                         ? sizeof(struct config_list)
                                                           : sizeof(const char *);
}

void config_renew(struct config *fresh, const struct config *now, struct pd_buf *ret_left)
{
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        struct setting *s = &fresh->owner->settings[i];

        if (renewable(row))
            continue;
        if (strcmp(s->value, now->owner->settings[i].value) != 0)
            pd_buf_printf(ret_left, "%s%s.%s", ret_left->len ? ", " : "", row->section, row->key);
        *s = now->owner->settings[i];
        memcpy((char *)fresh + row->offset, (const char *)now + row->offset, size_of(row->type));
    }
}

size_t config_setting_count(const struct config *c)
{
    return config_row_count + c->data.count;
}

struct config_setting config_setting_at(const struct config *c, size_t i)
{
    const struct setting *s;

    if (i < config_row_count) {
        s = &c->owner->settings[i];
        return (struct config_setting){
            config_rows[i].section, config_rows[i].key, s->value, s->source, s->origin,
            config_rows[i].meaning};
    }
    s = &c->owner->root_settings[i - config_row_count];
    return (struct config_setting){
        "data", c->owner->names[i - config_row_count], s->value, s->source, s->origin, "data root"};
}

const char *config_source_name(enum config_source s)
{
    static const char *const names[] = {"default", "file", "environment", "flag"};

    return (unsigned)s < sizeof names / sizeof *names ? names[s] : NULL;
}

const char *config_root_path(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->data.count; i++) {
        if (strcmp(c->data.roots[i].name, name) == 0)
            return c->data.roots[i].path;
    }
    return NULL;
}

void config_fuzz(const uint8_t *bytes, size_t len)
{
    struct config_report report;
    struct load *l = calloc(1, sizeof *l);
    char *text = malloc(len + 1);

    config_report_init(&report);
    if (l && text) {
        l->c = config_new();
        if (l->c) {
            l->p = l->c->owner;
            l->report = &report;
            l->file = "fuzz";
            memcpy(text, bytes, len);
            text[len] = '\0';
            set_defaults(l);
            load_text(l, text);
        }
        config_free(l->c);
    }
    config_report_done(&report);
    free(text);
    free(l);
}
