/* tests/config/test_config.c: layers and their precedence, every error with its place, the sample file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/polyd/config/config.h"
#include "daemon/polyd/config/table.h"
#include "daemon/polyd/devices/device.h"
#include "kernels/base/file.h"

static char dir[64], file[96];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/test_config.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(file, sizeof file, "%s/polyd.conf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(dir);
}

static void write_file(const char *text)
{
    assert_int_equal(pd_file_replace(file, text, strlen(text), 0600, NULL), PD_OK);
}

static struct config_report report;

/* Loads with these flags (NULL-terminated, without argv[0]) and environment (likewise, or NULL). HOME is
 * always set, so that a state directory can be found. */
static struct config *load(const char *const *flags, const char *const *vars)
{
    static const char *argv[32]; /* the configuration points into it */
    const char *env[32] = {"HOME=/home/somebody"};
    struct config *c = NULL;
    int argc = 1;
    size_t n = 1;
    enum pd_err err;

    argv[0] = "polyd";
    for (; flags && *flags; flags++)
        argv[argc++] = *flags;
    argv[argc] = NULL;
    for (; vars && *vars; vars++)
        env[n++] = *vars;
    config_report_done(&report);
    err = config_load(argc, argv, env, &c, &report);
    assert_true((err == PD_OK) == (c != NULL));
    assert_true((err == PD_OK) == (report.error_count == 0));
    return c;
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The one error, at this place, holding this text. */
static void expect_error(size_t i, const char *where, const char *what)
{
    if (i >= report.error_count)
        fail_msg("no error %zu; wanted %s: %s", i, where, what);
    if (!strstr(report.errors[i].where, where) || !strstr(report.errors[i].what, what))
        fail_msg("'%s: %s' instead of '%s: %s'", report.errors[i].where, report.errors[i].what, where, what);
}

static struct config_setting setting(const struct config *c, const char *section, const char *key)
{
    for (size_t i = 0; i < config_setting_count(c); i++) {
        struct config_setting s = config_setting_at(c, i);
        if (strcmp(s.section, section) == 0 && strcmp(s.key, key) == 0)
            return s;
    }
    fail_msg("no setting %s.%s", section, key);
    return (struct config_setting){NULL, NULL, NULL, CONFIG_SOURCE_DEFAULT, NULL, NULL};
}

/* What the check accepts, the start accepts, too. */
static void test_cpu_slots_are_limited_to_what_can_be_offered(void **state)
{
    struct device devices[DEVICE_CPU_MAX];
    char most[64], more[64];
    struct config *c;
    int count;

    (void)state;
    snprintf(most, sizeof most, "--devices.cpu_slots=%d", DEVICE_CPU_MAX);
    snprintf(more, sizeof more, "--devices.cpu_slots=%d", DEVICE_CPU_MAX + 1);
    c = load(FLAGS(most), NULL);
    assert_non_null(c);
    assert_int_equal(device_list((int)c->devices.cpu_slots, 1, devices, DEVICE_CPU_MAX, &count, NULL), PD_OK);
    config_free(c);
    assert_null(load(FLAGS(more), NULL));
    expect_error(0, "devices.cpu_slots", "from 1 to 64");
}

static void test_defaults_are_those_of_the_table(void **state)
{
    struct config *c = load(NULL, NULL);

    (void)state;
    assert_non_null(c);
    assert_string_equal(c->server.listen, "127.0.0.1");
    assert_int_equal(c->server.port, 7070);
    assert_string_equal(c->state.dir, "/home/somebody/.local/state/polyd");
    assert_int_equal(c->log.level, 6);
    assert_int_equal(c->devices.cpu_slots, 1);
    assert_true(c->devices.threads_per_slot >= 1);
    assert_null(c->web.dir);
    assert_non_null(c->worker.path);
    assert_int_equal(c->data.count, 0);
    assert_int_equal(c->arg_count, 0);
    assert_null(c->args[0]);
    assert_null(c->file);
    for (size_t i = 0; i < config_row_count; i++) {
        struct config_setting s = config_setting_at(c, i);
        assert_int_equal(s.source, CONFIG_SOURCE_DEFAULT);
        assert_string_equal(s.origin, "default");
        assert_non_null(s.value);
        assert_true(strlen(s.meaning) > 10);
    }
    config_free(c);
}

static void test_later_layers_win_and_sources_are_kept(void **state)
{
    struct config *c;
    struct config_setting s;
    char origin[128];

    (void)state;
    write_file("[server]\nport = 1001\nthreads = 3\n\n[worker]\ngrace_s = 7\n");
    c = load(FLAGS("--config", file, "--port=1003"),
             FLAGS("POLYD_SERVER_PORT=1002", "POLYD_SERVER_THREADS=4"));
    assert_non_null(c);
    assert_string_equal(c->file, file);
    assert_int_equal(c->server.port, 1003);
    assert_int_equal(c->server.threads, 4);
    assert_int_equal(c->worker.grace_s, 7);
    s = setting(c, "server", "port");
    assert_string_equal(s.value, "1003");
    assert_string_equal(s.origin, "--port");
    assert_string_equal(config_source_name(s.source), "flag");
    s = setting(c, "server", "threads");
    assert_string_equal(s.origin, "POLYD_SERVER_THREADS");
    assert_string_equal(config_source_name(s.source), "environment");
    s = setting(c, "worker", "grace_s");
    snprintf(origin, sizeof origin, "%s:6", file);
    assert_string_equal(s.origin, origin);
    assert_string_equal(config_source_name(s.source), "file");
    config_free(c);
}

/* Each row: its bounds hold and one beyond is refused, in every layer alike. */
static void test_every_number_keeps_its_bounds(void **state)
{
    (void)state;
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        char flag[96];
        struct config *c;
        if (row->type != CONFIG_T_INT)
            continue;
        for (int which = 0; which < 2; which++) {
            int64_t edge = which ? row->max : row->min;
            snprintf(flag, sizeof flag, "--%s.%s=%lld", row->section, row->key, (long long)edge);
            c = load(FLAGS(flag), NULL);
            assert_non_null(c);
            if (!(strcmp(row->key, "threads_per_slot") == 0 && edge == 0)) /* computed */
                assert_int_equal(*(int64_t *)((char *)c + row->offset), edge);
            config_free(c);
            snprintf(flag, sizeof flag, "--%s.%s=%lld", row->section, row->key,
                     (long long)(which ? edge + 1 : edge - 1));
            assert_null(load(FLAGS(flag), NULL));
            assert_int_equal(report.error_count, 1);
            expect_error(0, row->key, "must be from");
        }
        snprintf(flag, sizeof flag, "--%s.%s=12x", row->section, row->key);
        assert_null(load(FLAGS(flag), NULL));
        expect_error(0, row->key, "must be a whole number, not '12x'");
        snprintf(flag, sizeof flag, "--%s.%s=", row->section, row->key);
        assert_null(load(FLAGS(flag), NULL));
        expect_error(0, row->key, "must be a whole number, not ''");
        snprintf(flag, sizeof flag, "--%s.%s=99999999999999999999", row->section, row->key);
        assert_null(load(FLAGS(flag), NULL));
    }
}

static void test_short_flags_set_their_rows(void **state)
{
    struct config *c = load(FLAGS("--listen", "::1", "--port", "0", "--state-dir", "/tmp/s", "--web-dir=/tmp",
                                  "--log-level", "debug"),
                            NULL);

    (void)state;
    assert_non_null(c);
    assert_string_equal(c->server.listen, "::1");
    assert_int_equal(c->server.port, 0);
    assert_string_equal(c->state.dir, "/tmp/s");
    assert_string_equal(c->web.dir, "/tmp");
    assert_int_equal(c->log.level, 7);
    config_free(c);
}

static void test_data_roots_from_all_layers(void **state)
{
    struct config *c;
    char path[96];

    (void)state;
    write_file("[data]\nmnist = /tmp\nhere = .\n");
    c = load(FLAGS("--config", file, "--data", "books=/usr", "--data.more=/usr/share"),
             FLAGS("POLYD_DATA_MNIST=/"));
    assert_non_null(c);
    assert_int_equal(c->data.count, 4);
    assert_string_equal(c->data.names[0], "mnist");
    assert_string_equal(config_root_path(c, "mnist"), "/");
    snprintf(path, sizeof path, "%s/.", dir); /* relative to the file */
    assert_string_equal(config_root_path(c, "here"), path);
    assert_string_equal(config_root_path(c, "books"), "/usr");
    assert_string_equal(config_root_path(c, "more"), "/usr/share");
    assert_null(config_root_path(c, "none"));
    assert_string_equal(setting(c, "data", "mnist").origin, "POLYD_DATA_MNIST");
    assert_string_equal(setting(c, "data", "books").origin, "--data");
    config_free(c);
    c = load(FLAGS("--data", "gone=/nonexistent/place"), NULL);
    assert_non_null(c);
    assert_true(report.warning_count >= 1);
    assert_non_null(strstr(report.warnings[0].what, "is not a directory"));
    config_free(c);
}

static void test_data_roots_refuse_bad_names(void **state)
{
    (void)state;
    assert_null(load(FLAGS("--data", "nopath"), NULL));
    expect_error(0, "--data", "needs NAME=PATH");
    assert_null(load(FLAGS("--data", "a/b=/tmp"), NULL));
    expect_error(0, "--data", "'a/b' does not");
    assert_null(load(FLAGS("--data", "..=/tmp"), NULL));
    expect_error(0, "--data", "does not begin with a dot");
    assert_null(load(FLAGS("--data", "x="), NULL));
    expect_error(0, "--data", "needs a path");
    assert_null(load(FLAGS("--data", "a1234567890123456789012345678901234567890123456789=/tmp"), NULL));
    expect_error(0, "--data", "1 to 48");
}

static void test_every_error_of_a_file_is_named_with_its_line(void **state)
{
    char at[128];

    (void)state;
    write_file("stray = 1\n"                          /* 1 */
               "[server]\n"                           /* 2 */
               "prot = 7070\n"                        /* 3 */
               "port = abc\n"                         /* 4 */
               "threads = 2\n"                        /* 5 */
               "threads = 3\n"                        /* 6 */
               "just words\n"                         /* 7 */
               "[sever]\n"                            /* 8 */
               "port = 1\n"                           /* 9 */
               "[log\n"                               /* 10 */
               "[log]\n"                              /* 11 */
               "level = inf\n"                        /* 12 */
               "[data]\nmnist = /tmp\nmnist = /usr\n" /* 13-15 */
               "[store]\ncheckpoint = external\n"     /* 16, 17 */
               "[state]\ndir =\n");                   /* 18, 19 */
    assert_null(load(FLAGS("--check-config", "--config", file), NULL));
#define AT(line) (snprintf(at, sizeof at, "polyd.conf:%d", line), at)
    expect_error(0, AT(1), "before the first [section]");
    expect_error(1, AT(3), "unknown key 'prot' in section 'server'; did you mean 'port'?");
    expect_error(2, AT(4), "must be a whole number");
    expect_error(3, AT(6), "set twice; first in line 5");
    expect_error(4, AT(7), "expected key = value");
    expect_error(5, AT(9), "unknown section 'sever'; did you mean 'server'?");
    expect_error(6, AT(10), "closing ]");
    expect_error(7, AT(12), "must be one of error, warning, info, debug, not 'inf'; did you mean 'info'?");
    expect_error(8, AT(15), "set twice; first in line 14");
    expect_error(9, AT(17), "known but not available");
    expect_error(10, AT(19), "must not be empty");
    assert_int_equal(report.error_count, 11);
}

static void test_long_lines_and_binary_files_are_refused(void **state)
{
    struct config *c;
    char *text = malloc(10000);

    (void)state;
    assert_non_null(text);
    strcpy(text, "[state]\ndir = /");
    memset(text + 15, 'a', 3000);
    strcpy(text + 3015, "\n[log]\nlevel = debug\n");
    write_file(text);
    c = load(FLAGS("--config", file), NULL); /* beyond libinih's usual 200 bytes */
    assert_non_null(c);
    assert_int_equal(strlen(c->state.dir), 3001);
    assert_int_equal(c->log.level, 7);
    config_free(c);
    memset(text + 15, 'a', 9000);
    strcpy(text + 9015, "\n");
    write_file(text);
    assert_null(load(FLAGS("--config", file), NULL));
    expect_error(0, "polyd.conf:2", "longer than 4096 bytes");
    assert_int_equal(pd_file_replace(file, "[log]\0x", 7, 0600, NULL), PD_OK);
    assert_null(load(FLAGS("--config", file), NULL));
    expect_error(0, "polyd.conf", "not a text file");
    free(text);
}

static void test_a_named_file_must_exist(void **state)
{
    (void)state;
    unlink(file);
    assert_null(load(FLAGS("--config", file), NULL));
    expect_error(0, "polyd.conf", "No such file");
    assert_null(load(FLAGS("--config="), NULL));
    expect_error(0, "--config", "needs a file");
    assert_null(load(FLAGS("--config"), NULL));
    expect_error(0, "--config", "needs a file");
}

static void test_the_file_is_found_by_variables(void **state)
{
    struct config *c;
    char var[160], folder[128], path[160];

    (void)state;
    write_file("[server]\nport = 4711\n");
    snprintf(var, sizeof var, "POLYD_CONFIG=%s", file);
    c = load(NULL, FLAGS(var));
    assert_non_null(c);
    assert_int_equal(c->server.port, 4711);
    config_free(c);
    snprintf(var, sizeof var, "CONFIGURATION_DIRECTORY=%s", dir);
    c = load(NULL, FLAGS(var));
    assert_non_null(c);
    assert_int_equal(c->server.port, 4711);
    config_free(c);
    snprintf(folder, sizeof folder, "%s/polyd", dir);
    snprintf(path, sizeof path, "%s/polyd.conf", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(rename(file, path), 0);
    snprintf(var, sizeof var, "XDG_CONFIG_HOME=%s", dir);
    c = load(NULL, FLAGS(var));
    assert_non_null(c);
    assert_int_equal(c->server.port, 4711);
    config_free(c);
    unlink(path);
    rmdir(folder);
}

static void test_state_directory_follows_its_rules(void **state)
{
    static const char *const nothing[] = {NULL};
    const char *argv[] = {"polyd"};
    struct config *c = load(NULL, FLAGS("STATE_DIRECTORY=/var/lib/polyd:/x"));

    (void)state;
    assert_non_null(c);
    assert_string_equal(c->state.dir, "/var/lib/polyd");
    config_free(c);
    c = load(NULL, FLAGS("XDG_STATE_HOME=/x/state"));
    assert_non_null(c);
    assert_string_equal(c->state.dir, "/x/state/polyd");
    config_free(c);
    c = load(NULL, FLAGS("XDG_STATE_HOME=relative"));
    assert_non_null(c);
    assert_string_equal(c->state.dir, "/home/somebody/.local/state/polyd");
    config_free(c);
    c = load(NULL, FLAGS("INVOCATION_ID=abc"));
    assert_non_null(c);
    assert_string_equal(c->state.dir,
                        geteuid() == 0 ? "/var/lib/polyd" : "/home/somebody/.local/state/polyd");
    config_free(c);
    c = NULL;
    config_report_done(&report);
    assert_int_equal(config_load(1, argv, nothing, &c, &report), PD_ERR_INVALID);
    expect_error(0, "default", "neither XDG_STATE_HOME nor HOME");
    assert_null(c);
}

static void test_unknown_flags_and_variables_get_a_suggestion(void **state)
{
    struct config *c;

    (void)state;
    assert_null(load(FLAGS("--prt=3"), NULL));
    expect_error(0, "--prt", "did you mean 'port'?");
    assert_null(load(FLAGS("--server.prot=3"), NULL));
    expect_error(0, "--server.prot", "did you mean 'server.port'?");
    assert_null(load(FLAGS("-x"), NULL));
    expect_error(0, "-x", "unknown flag");
    assert_null(load(FLAGS("--port"), NULL));
    expect_error(0, "--port", "needs a value");
    assert_null(load(FLAGS("--check-config=yes"), NULL));
    expect_error(0, "--check-config", "takes no value");
    assert_null(load(NULL, FLAGS("POLYD_SERVER_PROT=1")));
    expect_error(0, "POLYD_SERVER_PROT", "did you mean 'POLYD_SERVER_PORT'?");
    c = load(NULL, FLAGS("POLYD_SEVER_PORT=1", "POLYD_TOKEN=x", "POLYD_CPU_LEVEL=3"));
    assert_non_null(c);
    assert_int_equal(c->server.port, 7070);
    assert_true(report.warning_count >= 1);
    assert_non_null(strstr(report.warnings[0].what, "POLYD_SERVER_PORT"));
    config_free(c);
}

static void test_several_layers_report_together(void **state)
{
    (void)state;
    write_file("[server]\nport = -1\n");
    assert_null(load(FLAGS("--config", file, "--log-level=loud"), FLAGS("POLYD_WORKER_GRACE_S=never")));
    assert_int_equal(report.error_count, 3);
    expect_error(0, "polyd.conf:2", "from 0 to 65535");
    expect_error(1, "POLYD_WORKER_GRACE_S", "whole number");
    expect_error(2, "--log-level", "must be one of");
}

static void test_addresses_and_lists(void **state)
{
    struct config *c =
        load(FLAGS("--server.allowed_hosts=a.example, b.example  c.example", "--listen=127.0.0.2"), NULL);

    (void)state;
    assert_non_null(c);
    assert_int_equal(c->server.allowed_hosts.count, 3);
    assert_string_equal(c->server.allowed_hosts.items[2], "c.example");
    assert_int_equal(c->server.allowed_origins.count, 0);
    config_free(c);
    assert_null(load(FLAGS("--listen=localhost"), NULL));
    expect_error(0, "--listen", "must be an address");
}

static void test_listening_beyond_loopback_must_be_asked_for(void **state)
{
    static const char *const beyond[] = {"0.0.0.0",         "::",        "10.0.0.5",
                                         "::ffff:10.0.0.5", "128.0.0.1", "2001:db8::1"};
    static const char *const within[] = {"127.0.0.1", "127.255.0.3", "::1", "0:0:0:0:0:0:0:1",
                                         "::ffff:127.0.0.1"};
    char flag[80];

    (void)state;
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        snprintf(flag, sizeof flag, "--listen=%s", beyond[i]);
        assert_null(load(FLAGS(flag), NULL));
        expect_error(0, "--listen", "is not a loopback address");
        expect_error(0, "--listen", "--insecure-listen");
        assert_int_equal(report.error_count, 1);
        assert_null(load(FLAGS(flag, "--check-config"), NULL));
        assert_null(load(FLAGS(flag, "--insecure-listen=no"), NULL));
    }
    for (size_t i = 0; i < sizeof within / sizeof *within; i++) {
        struct config *c;

        snprintf(flag, sizeof flag, "--listen=%s", within[i]);
        c = load(FLAGS(flag), NULL);
        assert_non_null(c);
        assert_int_equal(c->server.insecure_listen, 0);
        config_free(c);
    }
}

static void assert_listens(struct config *c)
{
    assert_non_null(c);
    assert_string_equal(c->server.listen, "0.0.0.0");
    assert_int_equal(c->server.insecure_listen, 1);
    assert_true(report.warning_count >= 1);
    assert_non_null(strstr(report.warnings[report.warning_count - 1].what, "every client that reaches it"));
    config_free(c);
}

static void test_listening_beyond_loopback_is_asked_for_in_each_layer(void **state)
{
    struct config *c;

    (void)state;
    assert_listens(load(FLAGS("--insecure-listen", "--listen", "0.0.0.0"), NULL));
    assert_listens(load(FLAGS("--listen=0.0.0.0", "--insecure-listen=yes"), NULL));
    assert_listens(load(FLAGS("--server.listen=0.0.0.0", "--server.insecure_listen=yes"), NULL));
    assert_listens(load(NULL, FLAGS("POLYD_SERVER_LISTEN=0.0.0.0", "POLYD_SERVER_INSECURE_LISTEN=yes")));
    write_file("[server]\nlisten = 0.0.0.0\ninsecure_listen = yes\n");
    assert_listens(load(FLAGS("--config", file), NULL));
    /* One layer may take back what another one allowed, and allow what another one asks for. */
    assert_null(load(FLAGS("--config", file, "--server.insecure_listen=no"), NULL));
    write_file("[server]\nlisten = 0.0.0.0\n");
    assert_null(load(FLAGS("--config", file), NULL));
    expect_error(0, "polyd.conf:2", "is not a loopback address");
    assert_listens(load(FLAGS("--config", file, "--insecure-listen"), NULL));
    /* The flag takes no value from the next word. */
    c = load(FLAGS("--insecure-listen", "verify"), NULL);
    assert_non_null(c);
    assert_string_equal(c->args[0], "verify");
    config_free(c);
    /* What does not listen is not held up. */
    c = load(FLAGS("--config", file, "verify"), NULL);
    assert_non_null(c);
    config_free(c);
}

static void test_words_after_the_flags_are_arguments(void **state)
{
    struct config *c = load(FLAGS("--port=1", "token", "create", "--role", "viewer"), NULL);

    (void)state;
    assert_non_null(c);
    assert_int_equal(c->arg_count, 4);
    assert_string_equal(c->args[0], "token");
    assert_string_equal(c->args[2], "--role");
    assert_null(c->args[4]);
    config_free(c);
    c = load(FLAGS("--", "--port"), NULL);
    assert_non_null(c);
    assert_int_equal(c->arg_count, 1);
    config_free(c);
}

static void test_actions_need_no_sound_configuration(void **state)
{
    static const struct {
        const char *flag;
        enum config_action action;
    } cases[] = {{"--help", CONFIG_ACTION_HELP},       {"-h", CONFIG_ACTION_HELP},
                 {"--version", CONFIG_ACTION_VERSION}, {"--sample-config", CONFIG_ACTION_SAMPLE},
                 {"--manual", CONFIG_ACTION_MANUAL},   {"--manual-conf", CONFIG_ACTION_FORMAT}};
    struct config *c;

    (void)state;
    write_file("[nonsense\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c = load(FLAGS(cases[i].flag, "--config", file), NULL);
        assert_non_null(c);
        assert_int_equal(c->action, cases[i].action);
        config_free(c);
    }
    c = load(FLAGS("--check-config"), NULL);
    assert_non_null(c);
    assert_int_equal(c->action, CONFIG_ACTION_CHECK);
    config_free(c);
}

static void test_help_names_every_setting_and_variable(void **state)
{
    static const char *const commands[] = {"doctor", "fields", "verify", "routes"};
    struct pd_buf b;
    char text[96];

    (void)state;
    pd_buf_init(&b, 0);
    config_help(&b);
    assert_int_equal(pd_buf_err(&b), PD_OK);
    for (size_t i = 0; i < config_row_count; i++) {
        snprintf(text, sizeof text, "--%s.%s=", config_rows[i].section, config_rows[i].key);
        assert_non_null(strstr(b.data, text));
        assert_non_null(strstr(b.data, config_rows[i].meaning));
        if (config_rows[i].flag) {
            snprintf(text, sizeof text, "--%s%s", config_rows[i].flag, config_rows[i].bare ? "," : " ");
            assert_non_null(strstr(b.data, text));
        }
    }
    assert_non_null(strstr(b.data, "POLYD_SERVER_PORT"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(text, sizeof text, "polyd [flags] %s ", commands[i]);
        assert_non_null(strstr(b.data, text));
    }
    pd_buf_done(&b);
}

static void test_sample_file_is_the_table_and_loads(void **state)
{
    struct pd_buf made, kept, open;
    struct config *c;

    (void)state;
    pd_buf_init(&made, 0);
    pd_buf_init(&kept, 0);
    pd_buf_init(&open, 0);
    config_sample(&made);
    assert_int_equal(pd_buf_err(&made), PD_OK);
    assert_int_equal(pd_file_read(SAMPLE_FILE, 1 << 20, &kept, NULL), PD_OK);
    if (made.len != kept.len || memcmp(made.data, kept.data, made.len) != 0)
        fail_msg("deploy/polyd.conf is not what --sample-config prints");
    c = load(FLAGS("--config", SAMPLE_FILE), NULL);
    assert_non_null(c);
    config_free(c);
    /* With the comment signs taken away every line with a default must load too. */
    for (char *line = strtok(made.data, "\n"); line; line = strtok(NULL, "\n")) {
        size_t n = strlen(line);
        if (line[0] == '#' && line[1] != ' ' && line[n - 1] != '=')
            pd_buf_printf(&open, "%s\n", line + 1);
        else if (line[0] == '[')
            pd_buf_printf(&open, "%s\n", line);
    }
    write_file(open.data);
    c = load(FLAGS("--config", file), NULL);
    assert_non_null(c);
    assert_int_equal(c->data.count, 2);
    assert_int_equal(setting(c, "server", "port").source, CONFIG_SOURCE_FILE);
    config_free(c);
    pd_buf_done(&made);
    pd_buf_done(&kept);
    pd_buf_done(&open);
}

static void test_report_text_has_a_line_each(void **state)
{
    struct pd_buf b;

    (void)state;
    assert_null(load(FLAGS("--port=x", "--listen=0.0.0.0", "--insecure-listen"), NULL));
    pd_buf_init(&b, 0);
    config_report_text(&report, &b);
    assert_non_null(strstr(b.data, "--port: server.port must be a whole number, not 'x'\n"));
    assert_non_null(strstr(b.data, "warning: --listen: "));
    pd_buf_done(&b);
}

static void test_fuzz_entry_takes_anything(void **state)
{
    static const char *const inputs[] = {"",
                                         "[",
                                         "]",
                                         "=",
                                         "[]\n=\n",
                                         "[server]\nport=1\nport=2\n  port = 3\n",
                                         "\xef\xbb\xbf[log]\nlevel=info",
                                         "[data]\n..=/\n=x\n",
                                         "[server]\nlisten : ::1 ; comment\n"};
    uint8_t bytes[512];
    uint32_t x = 1;

    (void)state;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        config_fuzz((const uint8_t *)inputs[i], strlen(inputs[i]));
    for (int round = 0; round < 500; round++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            x = x * 1664525 + 1013904223;
            bytes[i] = (uint8_t) "[]=;#\n\n server port data listen\0\xff"[x >> 8 & 31];
        }
        config_fuzz(bytes, sizeof bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cpu_slots_are_limited_to_what_can_be_offered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_defaults_are_those_of_the_table, setup, teardown),
        cmocka_unit_test_setup_teardown(test_later_layers_win_and_sources_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_number_keeps_its_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_short_flags_set_their_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_data_roots_from_all_layers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_data_roots_refuse_bad_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_error_of_a_file_is_named_with_its_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines_and_binary_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_named_file_must_exist, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_file_is_found_by_variables, setup, teardown),
        cmocka_unit_test_setup_teardown(test_state_directory_follows_its_rules, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_flags_and_variables_get_a_suggestion, setup, teardown),
        cmocka_unit_test_setup_teardown(test_several_layers_report_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_addresses_and_lists, setup, teardown),
        cmocka_unit_test_setup_teardown(test_listening_beyond_loopback_must_be_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_listening_beyond_loopback_is_asked_for_in_each_layer, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_words_after_the_flags_are_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(test_actions_need_no_sound_configuration, setup, teardown),
        cmocka_unit_test_setup_teardown(test_help_names_every_setting_and_variable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sample_file_is_the_table_and_loads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_report_text_has_a_line_each, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fuzz_entry_takes_anything, setup, teardown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    config_report_done(&report);
    return failed;
}
