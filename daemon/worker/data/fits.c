/* Which data sets of the job document a file or folder can be read as. */
#include <stdio.h>
#include <string.h>

#include "daemon/worker/data/have.h"
#include "daemon/worker/data/set.h"
#include "daemon/job/job.h"
#include "kernels/base/clock.h"

#define TEXT_CONTEXT                                                                                         \
    128 /* tokens: the smallest preset's, so that a text of one line is not called a data set */

static const struct form {
    int dataset; /* enum job_dataset */
    enum data_dataset form;
} known[] = {
    {JOB_DATASET_MNIST, DATA_SET_MNIST},
    {JOB_DATASET_DIGITS_GEN, DATA_SET_DIGITS_GEN},
    {JOB_DATASET_CIFAR10, DATA_SET_CIFAR10},
    {JOB_DATASET_IMAGE_FOLDER, DATA_SET_PICTURES},
    {JOB_DATASET_IMAGENET1K, DATA_SET_PICTURES},
    {JOB_DATASET_TINY_IMAGENET, DATA_SET_PICTURES},
    {JOB_DATASET_TEXT, DATA_SET_TEXT},
    {JOB_DATASET_PTB, DATA_SET_TEXTS},
    {JOB_DATASET_WIKITEXT2, DATA_SET_TEXTS},
    {JOB_DATASET_WIKITEXT103, DATA_SET_TEXTS},
    {JOB_DATASET_OPENWEBTEXT, DATA_SET_DOCUMENTS},
    {JOB_DATASET_PG19, DATA_SET_DOCUMENTS},
    {JOB_DATASET_TEXT_LABELS, DATA_SET_LABELLED},
    {JOB_DATASET_TEXT_GEN, DATA_SET_TEXT_GEN},
    {JOB_DATASET_PDE_CONVECTION, DATA_SET_POINTS},
    {JOB_DATASET_PDE_REACTION, DATA_SET_POINTS},
    {JOB_DATASET_PDE_WAVE, DATA_SET_POINTS},
    {JOB_DATASET_LISTOPS_GEN, DATA_SET_LISTOPS_GEN},
    {JOB_DATASET_PATHFINDER_GEN, DATA_SET_PATHFINDER_GEN},
    {JOB_DATASET_LISTOPS, DATA_SET_LISTOPS},
    {JOB_DATASET_IMDB, DATA_SET_IMDB},
    {JOB_DATASET_AAN, DATA_SET_AAN},
    {JOB_DATASET_LRA_IMAGE, DATA_SET_GREYS},
    {JOB_DATASET_TEXT_PAIRS, DATA_SET_PAIRS},
};
#define KNOWN (sizeof known / sizeof *known)

bool data_form(int dataset, enum data_dataset *ret)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (known[i].dataset == dataset) {
            *ret = known[i].form;
            return true;
        }
    return false;
}

/* Opens the place as this form; *ret_classes: of pictures. */
static enum pd_err open_as(const struct data_root *root, const char *path, enum data_dataset form,
                           const struct job_dataset_info *info, int64_t until_us, int32_t *ret_classes,
                           struct pd_why *why)
{
    struct data_options o = {
        .dataset = form,
        .path = path,
        .roots = root,
        .root_count = 1,
        .rule = DATA_SPLIT_STANDARD,
        .context = TEXT_CONTEXT,
        .tokenizer = DATA_TOKENIZER_BYTES,
        .height = (int32_t)info->side[0],
        .width = (int32_t)info->side[1],
        .until_us = until_us,
    };
    struct data_set *set = NULL;
    enum pd_err err = data_open(&o, true, &set, why);

    if (err == PD_OK)
        *ret_classes = data_info(set)->classes;
    data_free(set);
    return err;
}

/* The form, by its first data set. */
static void try_form(const struct data_root *root, const char *path, enum data_dataset form,
                     const struct job_dataset_info *info, int64_t until_us, struct data_fit *ret,
                     int32_t *ret_classes)
{
    struct pd_why why = {""};
    char place[64];
    enum pd_err err = open_as(root, path, form, info, until_us, ret_classes, &why);

    *ret = (struct data_fit){.split = "standard"};
    ret->fits = err == PD_OK || err == PD_ERR_TIMEOUT;
    ret->checked = err == PD_OK;
    if (!ret->fits) {
        const char *wrong = pd_why_place(why.text, place, sizeof place);

        snprintf(ret->missing, sizeof ret->missing, "%s",
                 !strncmp(place, "#/data/split", 12)
                     ? "it is too small to be divided into a training and a validation part"
                     : wrong);
    }
}

size_t data_fits(const struct data_root *root, const char *path, unsigned forms, int64_t until_us,
                 struct data_fit ret[DATA_HAVE_FITS])
{
    size_t count = 0;

    for (size_t i = 0; i < KNOWN; i++) {
        enum data_dataset form = known[i].form;
        struct data_fit one;
        int32_t classes = 0;
        int64_t soon_us = pd_clock_mono_us() + DATA_HAVE_SET_US;

        if (!(forms >> form & 1) || (i && known[i - 1].form == form))
            continue;
        try_form(root, path, form, job_dataset_info((enum job_dataset)known[i].dataset),
                 soon_us < until_us ? soon_us : until_us, &one, &classes);
        for (size_t k = i; k < KNOWN && known[k].form == form && count < DATA_HAVE_FITS; k++) {
            const struct job_dataset_info *info = job_dataset_info((enum job_dataset)known[k].dataset);

            /* A set of another number of classes is another data set. */
            if (k > i && info->classes && (!one.checked || info->classes != classes))
                continue;
            ret[count] = one;
            ret[count++].dataset = info->name;
        }
    }
    return count;
}
