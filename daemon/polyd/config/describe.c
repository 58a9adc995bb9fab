/* --help, --sample-config and the manual pages, written from the tables. */
#include "daemon/polyd/config/load.h"

#include <string.h>

#include "kernels/base/manual.h"

static const char *default_text(const struct config_row *row)
{
    return row->def_text ? row->def_text : *row->def ? row->def : "none";
}

/* What --help and the manual pages share. */
static const char about[] = "trains and serves transformers";
static const char layers[] =
    "A value comes from a flag, else from the environment, else from the file, else it is the default.";
static const char places[] =
    "The file is --config, else $POLYD_CONFIG, else /etc/polyd/polyd.conf (as a service\n"
    "$CONFIGURATION_DIRECTORY/polyd.conf), else ~/.config/polyd/polyd.conf.";
static const char roots[] = "a data root: jobs read only below these folders, as NAME/...; may be repeated";
static const char file_flag[] = "the configuration file";

const struct config_command config_commands[] = {
    {"doctor", "", "report which GPUs, driver and plug-ins are available and, if not, why"},
    {"fields", "", "print every field of a job document"},
    {"gc", "[--dry-run]",
     "remove files of the state folder that the database does not refer to; with --dry-run only list them"},
    {"metrics", "", "print every metric that polyd writes, as JSON"},
    {"routes", "", "print every route of the API"},
    {"verify", "[quick]",
     "check the state folder, also while the daemon runs; with quick without the digests of files"},
    {NULL, NULL, NULL},
};

/* A row's meaning, range and default, as one text. */
static void row_text(struct pd_buf *out, const struct config_row *row, const char *between)
{
    pd_buf_str(out, row->meaning);
    if (row->type == CONFIG_T_INT)
        pd_buf_printf(out, " (%lld to %lld)", (long long)row->min, (long long)row->max);
    pd_buf_printf(out, "%sdefault: %s", between, default_text(row));
}

/* "--port N, --server.port=N, POLYD_SERVER_PORT" */
static void row_flags(struct pd_buf *out, const struct config_row *row)
{
    char name[80];

    load_env_name(row, name, sizeof name);
    if (row->flag)
        pd_buf_printf(out, "--%s%s%s, ", row->flag, row->bare ? "" : " ", row->bare ? "" : row->arg);
    pd_buf_printf(out, "--%s.%s=%s, %s", row->section, row->key, row->arg, name);
}

void config_help(struct pd_buf *out)
{
    const char *section = "";

    pd_buf_printf(out, "polyd: %s; see /openapi.yaml and the dashboard\n\n", about);
    pd_buf_str(out, "  polyd [flags]                   run the daemon\n");
    for (const struct config_command *c = config_commands; c->name; c++)
        pd_buf_printf(out, "  polyd [flags] %s%s%-*s %s\n", c->name, *c->args ? " " : "",
                      17 - (int)strlen(c->name) - (*c->args != '\0'), c->args, c->meaning);
    pd_buf_printf(out, "\n%s\n%s\n\n", layers, places);
    pd_buf_printf(out, "  --config FILE\n      %s\n", file_flag);
    pd_buf_printf(out, "  --data NAME=PATH, --data.NAME=PATH, POLYD_DATA_NAME\n      %s\n", roots);
    for (size_t i = 0; i < LOAD_ACTIONS; i++)
        pd_buf_printf(out, "  --%s%s\n      %s\n", load_actions[i].name, i ? "" : ", -h",
                      load_actions[i].meaning);
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        if (strcmp(section, row->section) != 0)
            pd_buf_printf(out, "\n[%s]\n", row->section);
        section = row->section;
        pd_buf_str(out, "  ");
        row_flags(out, row);
        pd_buf_str(out, "\n      ");
        row_text(out, row, "\n      ");
        pd_buf_str(out, "\n");
    }
}

void config_sample(struct pd_buf *out)
{
    const char *section = "";

    pd_buf_str(out,
               "# polyd.conf: settings of polyd, each at its default. Printed by `polyd --sample-config`, "
               "which a test\n"
               "# compares with this file. The environment (POLYD_SERVER_PORT) and flags (--server.port) "
               "override it.\n\n"
               "[data]\n"
               "# Folders that jobs may read, as NAME = PATH; data.path of a job begins with such a name.\n"
               "#mnist = /srv/data/mnist\n"
               "#corpora = /srv/data/corpora\n");
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        if (strcmp(section, row->section) != 0)
            pd_buf_printf(out, "\n[%s]\n", row->section);
        section = row->section;
        pd_buf_printf(out, "# %s\n", row->meaning);
        if (row->def)
            pd_buf_printf(out, "#%s =%s%s\n", row->key, *row->def ? " " : "", row->def);
        else
            pd_buf_printf(out, "# (default: %s)\n#%s =\n", row->def_text, row->key);
    }
}

/* An entry whose term and text were written into buffers, which are freed. */
static void entry(struct pd_buf *out, struct pd_buf *term, struct pd_buf *text)
{
    if (pd_buf_err(term) == PD_OK && pd_buf_err(text) == PD_OK)
        pd_manual_entry(out, term->data, text->data);
    else
        out->failed = true;
    pd_buf_done(term);
    pd_buf_done(text);
}

void config_manual(struct pd_buf *out)
{
    const char *section = "";
    struct pd_buf term, text;

    pd_buf_init(&term, 0);
    pd_buf_init(&text, 0);
    pd_manual_begin(out, "polyd", 8, "polyd " POLYD_VERSION, about);
    pd_manual_section(out, "SYNOPSIS");
    pd_manual_paragraph(out, "polyd [flags] [command]");
    pd_manual_section(out, "DESCRIPTION");
    pd_manual_paragraph(
        out, "polyd is a daemon. It accepts jobs as JSON over HTTP, trains them in worker processes "
             "(polyd-worker(8)), stores runs and metrics in one SQLite file, shows them on a web page, "
             "and serves trained models. It listens on 127.0.0.1:7070 by default; GET /openapi.yaml "
             "is the contract of its API.");
    pd_manual_paragraph(out, layers);
    pd_manual_paragraph(out, places);
    pd_manual_section(out, "COMMANDS");
    for (const struct config_command *c = config_commands; c->name; c++) {
        pd_buf_printf(&term, "%s%s%s", c->name, *c->args ? " " : "", c->args);
        pd_buf_str(&text, c->meaning);
        entry(out, &term, &text);
    }
    pd_manual_section(out, "OPTIONS");
    pd_manual_entry(out, "--config FILE", file_flag);
    pd_manual_entry(out, "--data NAME=PATH, --data.NAME=PATH, POLYD_DATA_NAME", roots);
    for (size_t i = 0; i < LOAD_ACTIONS; i++) {
        pd_buf_printf(&term, "--%s%s", load_actions[i].name, i ? "" : ", -h");
        pd_buf_str(&text, load_actions[i].meaning);
        entry(out, &term, &text);
    }
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];

        if (strcmp(section, row->section) != 0)
            pd_manual_subsection(out, row->section);
        section = row->section;
        row_flags(&term, row);
        row_text(&text, row, "; ");
        entry(out, &term, &text);
    }
    pd_manual_section(out, "EXIT STATUS");
    pd_manual_entry(out, "0", "the daemon was stopped, or the command succeeded");
    pd_manual_entry(out, "1", "the start or the command failed; the reason is on standard error");
    pd_manual_entry(out, "2", "a flag, a setting or a command is wrong");
    pd_manual_entry(out, "78", "the state folder has lost its database; see --init");
    pd_manual_section(out, "SIGNALS");
    pd_manual_entry(out, "SIGHUP",
                    "reload the data roots, [keep] and log.level; the log names other changed settings");
    pd_manual_entry(out, "SIGTERM, SIGINT",
                    "stop; training workers continue, and the next daemon adopts them");
    pd_manual_section(out, "SEE ALSO");
    pd_manual_paragraph(out, "polyd.conf(5), polyd-worker(8)");
}

void config_manual_conf(struct pd_buf *out)
{
    const char *section = "";
    struct pd_buf term, text;

    pd_buf_init(&term, 0);
    pd_buf_init(&text, 0);
    pd_manual_begin(out, "polyd.conf", 5, "polyd " POLYD_VERSION, "settings of polyd");
    pd_manual_section(out, "DESCRIPTION");
    pd_manual_paragraph(
        out, "An INI file: sections in brackets, one KEY = VALUE per line, comments after # or ;. "
             "polyd --sample-config prints one with every setting, polyd --check-config reports the "
             "errors of a file.");
    pd_manual_paragraph(out, layers);
    pd_manual_paragraph(out, places);
    pd_manual_section(out, "SETTINGS");
    pd_manual_subsection(out, "[data]");
    pd_manual_entry(out, "NAME = PATH", roots);
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];

        if (strcmp(section, row->section) != 0) {
            pd_buf_printf(&term, "[%s]", row->section);
            if (pd_buf_err(&term) == PD_OK)
                pd_manual_subsection(out, term.data);
            else
                out->failed = true;
            pd_buf_done(&term);
        }
        section = row->section;
        pd_buf_printf(&term, "%s = %s", row->key, row->arg);
        row_text(&text, row, "; ");
        entry(out, &term, &text);
    }
    pd_manual_section(out, "SEE ALSO");
    pd_manual_paragraph(out, "polyd(8)");
}
