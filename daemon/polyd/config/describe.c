/* --help and --sample-config, written from the table. */
#include "daemon/polyd/config/load.h"

#include <string.h>

static const char *default_text(const struct config_row *row)
{
    return row->def_text ? row->def_text : *row->def ? row->def : "none";
}

void config_help(struct pd_buf *out)
{
    const char *section = "";
    char name[80];

    pd_buf_str(
        out,
        "polyd: trains and serves transformers; see /openapi.yaml and the dashboard\n\n"
        "  polyd [flags]                   run the daemon\n"
        "  polyd [flags] fields            print every field of a job document\n"
        "  polyd [flags] gc [--dry-run]    list and remove files of the state directory that belong to "
        "nothing\n"
        "  polyd [flags] metrics           print every metric that polyd writes, as JSON\n"
        "  polyd [flags] verify [quick]    check the state directory, also while the daemon runs\n"
        "  polyd [flags] doctor            list the GPUs, and say of each that cannot be used why\n"
        "  polyd [flags] routes            print every route of the API\n\n"
        "A value comes from a flag, else from the environment, else from the file, else it is the default.\n"
        "The file is --config, else $POLYD_CONFIG, else /etc/polyd/polyd.conf (as a service\n"
        "$CONFIGURATION_DIRECTORY/polyd.conf), else ~/.config/polyd/polyd.conf.\n\n"
        "  --config FILE\n      the file to read\n"
        "  --data NAME=PATH, --data.NAME=PATH, POLYD_DATA_NAME\n"
        "      a data root: jobs read only below these folders, as NAME/...; may be repeated\n");
    for (size_t i = 0; i < LOAD_ACTIONS; i++)
        pd_buf_printf(out, "  --%s%s\n      %s\n", load_actions[i].name, i ? "" : ", -h",
                      load_actions[i].meaning);
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        if (strcmp(section, row->section) != 0)
            pd_buf_printf(out, "\n[%s]\n", row->section);
        section = row->section;
        load_env_name(row, name, sizeof name);
        pd_buf_str(out, "  ");
        if (row->flag)
            pd_buf_printf(out, "--%s%s%s, ", row->flag, row->bare ? "" : " ", row->bare ? "" : row->arg);
        pd_buf_printf(out, "--%s.%s=%s, %s\n      %s", row->section, row->key, row->arg, name, row->meaning);
        if (row->type == CONFIG_T_INT)
            pd_buf_printf(out, " (%lld to %lld)", (long long)row->min, (long long)row->max);
        pd_buf_printf(out, "\n      default: %s\n", default_text(row));
    }
}

void config_sample(struct pd_buf *out)
{
    const char *section = "";

    pd_buf_str(
        out,
        "# polyd.conf: settings of polyd, each at its default. Made by `polyd --sample-config`; a test "
        "keeps\n"
        "# it true. The environment (POLYD_SERVER_PORT) and flags (--server.port) win over this file.\n\n"
        "[data]\n"
        "# Folders that jobs may read, as NAME = PATH: data.path in a job begins with such a name.\n"
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
