/* The known keys, and suggestions for misspelt ones. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

const struct job_field *job_field_find(const char *pointer)
{
    for (size_t i = 0; i < job_field_count; i++) {
        if (strcmp(job_fields[i].pointer, pointer) == 0)
            return &job_fields[i];
    }
    return NULL;
}

bool job_field_below(const char *pointer)
{
    size_t n = strlen(pointer);

    for (size_t i = 0; i < job_field_count; i++) {
        if (strncmp(job_fields[i].pointer, pointer, n) == 0 && job_fields[i].pointer[n] == '/')
            return true;
    }
    return false;
}

#define MOST_SIBLINGS 64

/* The distinct keys right below `parent`, each NUL-terminated in `text`. */
static size_t siblings(const char *parent, char text[MOST_SIBLINGS][40], const char *names[MOST_SIBLINGS])
{
    size_t n = strlen(parent), count = 0;

    for (size_t i = 0; i < job_field_count && count < MOST_SIBLINGS; i++) {
        const char *p = job_fields[i].pointer;
        size_t k = 0;
        if (strncmp(p, parent, n) != 0 || p[n] != '/')
            continue;
        snprintf(text[count], sizeof text[count], "%.*s", (int)strcspn(p + n + 1, "/"), p + n + 1);
        while (k < count && strcmp(text[k], text[count]) != 0)
            k++;
        if (k == count) {
            names[count] = text[count];
            count++;
        }
    }
    return count;
}

static int depth(const char *pointer, const char *end)
{
    int n = 0;

    for (; pointer < end; pointer++)
        n += *pointer == '/';
    return n;
}

/* A field or section with this last key, elsewhere: a section only where it lies less deep. NULL if none. */
static const char *elsewhere(const char *key)
{
    const char *found = NULL;
    int deep = 0;

    /* One that this build can run before one that it only knows. */
    for (size_t i = 0; i < job_field_count; i++) {
        const char *last = strrchr(job_fields[i].pointer, '/') + 1;
        bool runs = !(job_fields[i].flags & (JOB_F_ONLY | JOB_F_LATER));

        if (strcmp(last, key) == 0 && (runs || !found)) {
            found = job_fields[i].pointer;
            if (runs)
                break;
        }
    }
    if (found)
        deep = depth(found, found + strlen(found));
    /* A section of that name: "optimizer" at the top belongs at /train/optimizer. */
    for (size_t i = 0; i < job_field_count; i++) {
        const char *p = job_fields[i].pointer, *at = p;
        size_t n = strlen(key);
        while ((at = strchr(at + 1, '/')) != NULL) {
            const char *start = at;
            while (start > p && start[-1] != '/')
                start--;
            if ((size_t)(at - start) == n && memcmp(start, key, n) == 0 && (!found || depth(p, at) < deep))
                return p;
        }
    }
    return found;
}

/* What other trainers call it, in small letters without "_" and "-". */
static const struct {
    const char *pointer;
    const char *words; /* separated by blanks */
} synonyms[] = {
    {"/name", "runname jobname title"},
    {"/experiment", "project projectname experimentname group"},
    {"/notes", "description comment"},
    {"/model/preset", "modelname architecture modeltype"},
    {"/model/width",
     "hiddensize dmodel nembd embeddim embeddingdim dim hiddendim hiddenwidth embeddingsize nhidden"},
    {"/model/depth", "numhiddenlayers numlayers nlayer nlayers layers numblocks nblocks"},
    {"/model/heads", "numattentionheads numheads nhead nheads attentionheads"},
    {"/model/mlp_ratio", "intermediatesize dimfeedforward mlpdim ffndim ninner mlpwidth ffnratio"},
    {"/model/mlp_act", "hiddenact activationfunction mlpactivation actlayer"},
    {"/model/patch", "patchsize"},
    {"/model/context", "blocksize npositions maxpositionembeddings seqlen seqlength sequencelength maxseqlen "
                       "contextlength nctx maxlength"},
    {"/attention/dropout", "attentiondropout attndropout attnpdrop attentionprobsdropoutprob"},
    {"/train/dropout", "residpdrop embdpdrop hiddendropoutprob hiddendropout dropoutrate"},
    {"/train/drop_path", "droppathrate stochasticdepth"},
    {"/norm/eps", "layernormeps layernormepsilon rmsnormeps"},
    {"/data/dataset", "datasetname"},
    {"/data/path", "datadir datapath datasetpath dataroot traindata trainfile"},
    {"/data/image_size", "imgsize resolution inputsize"},
    {"/train/batch", "batchsize perdevicetrainbatchsize trainbatchsize globalbatchsize microbatchsize"},
    {"/train/epochs", "numepochs numtrainepochs maxepochs nepochs trainepochs"},
    {"/train/steps", "maxsteps numsteps totalsteps trainsteps maxiters iterations numiterations niters"},
    {"/train/accumulation", "gradientaccumulationsteps gradaccum gradaccumsteps gradientaccumulation "
                            "accumulategradbatches accumulationsteps"},
    {"/train/optimizer/lr", "learningrate baselr maxlr peaklr initlr"},
    {"/train/optimizer/name", "optim optimizertype optimizername"},
    {"/train/optimizer/weight_decay", "wd decay l2"},
    {"/train/optimizer/betas", "beta1 beta2 adambeta1 adambeta2"},
    {"/train/optimizer/eps", "epsilon adamepsilon"},
    {"/train/schedule/name", "scheduler lrscheduler lrschedulertype lrschedule lrdecay"},
    {"/train/schedule/warmup_steps", "warmup warmupiters numwarmupsteps warmupratio lrwarmup"},
    {"/train/schedule/min_lr", "lrmin etamin minlearningrate"},
    {"/train/clip_norm",
     "maxgradnorm gradclip gradientclipval clipgrad clipgradnorm gradientclipping gradclipnorm"},
    {"/train/label_smoothing", "labelsmoothingfactor smoothing"},
    {"/train/precision", "dtype fp16 bf16 mixedprecision amp torchdtype"},
    {"/train/ema", "emadecay modelema"},
    {"/train/stop/patience", "earlystopping earlystoppingpatience patience"},
    {"/train/stop/min_change", "mindelta earlystoppingthreshold"},
    {"/train/seed", "randomseed randomstate rngseed manualseed"},
    {"/train/init", "weightinit initializer initstd initializerrange"},
    {"/train/eval_every", "evalsteps evalinterval evalfreq validationinterval evalevery valcheckinterval"},
    {"/train/checkpoint_every/steps", "savesteps saveinterval saveevery checkpointinterval"},
    {"/train/keep", "savetotallimit"},
    {"/resources/device", "accelerator usecuda usegpu nocuda"},
    {"/resources/slots", "ngpu ngpus numgpus worldsize nprocpernode devices numdevices"},
    {"/resources/threads", "numthreads nthreads cpus ncpus"},
    {"/resources/loader_threads", "numworkers dataloadernumworkers nworkers workers"},
    {"/trials", "repeats numseeds nseeds numtrials ntrials"},
    {"/sweep/method", "searchalgorithm"},
};

/* The field that others call so, or NULL. */
static const char *synonym(const char *key)
{
    char plain[40];
    size_t n = 0;

    for (; *key; key++) {
        if (*key == '_' || *key == '-')
            continue;
        if (n + 1 == sizeof plain)
            return NULL;
        plain[n++] = (char)tolower((unsigned char)*key);
    }
    plain[n] = '\0';
    for (size_t i = 0; n && i < sizeof synonyms / sizeof *synonyms; i++)
        for (const char *at = synonyms[i].words; *at; at += strcspn(at, " "), at += *at == ' ')
            if (strcspn(at, " ") == n && !memcmp(at, plain, n))
                return synonyms[i].pointer;
    return NULL;
}

size_t job_keys_synonyms(bool (*each)(void *ctx, const char *word, const char *pointer), void *ctx)
{
    size_t count = 0;
    char word[64];

    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        for (const char *at = synonyms[i].words; *at; at += strcspn(at, " "), at += *at == ' ') {
            snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
            count++;
            if (!each(ctx, word, synonyms[i].pointer))
                return count;
        }
    return count;
}

const char *job_keys_unknown(char *out, size_t size, const char *parent, const char *key)
{
    char text[MOST_SIBLINGS][40];
    const char *names[MOST_SIBLINGS] = {NULL};
    size_t count = siblings(parent, text, names);
    unsigned distance = 3;
    const char *near = pd_nearest(key, names, count, &distance);
    const char *other = elsewhere(key), *meant = synonym(key);

    if (meant) {
        snprintf(out, size, "unknown key; did you mean %s?", meant);
    } else if (near && (distance == 1 || !other)) {
        snprintf(out, size, "unknown key; did you mean '%s'?", near);
    } else if (other) {
        /* Cut the pointer after the key, should the key be a section. */
        size_t n = strlen(key), len = strlen(other);
        const char *at = other;
        while ((at = strchr(at, '/')) != NULL) {
            if (strncmp(at + 1, key, n) == 0 && (at[1 + n] == '/' || at[1 + n] == '\0')) {
                len = (size_t)(at + 1 + n - other);
                break;
            }
            at++;
        }
        snprintf(out, size, "unknown key here; it belongs at %.*s", (int)len, other);
    } else {
        snprintf(out, size, "unknown key");
    }
    return out;
}

void job_keys_check(struct job_ctx *c, json_t *v, const char *pointer, const char *place)
{
    const char *key;
    json_t *child;
    char sentence[256];

    json_object_foreach(v, key, child)
    {
        struct pd_buf path, spot;
        const struct job_field *f;

        pd_buf_init(&path, 0);
        pd_buf_init(&spot, 0);
        pd_buf_printf(&path, "%s/%s", pointer, key);
        pd_buf_str(&spot, place);
        job_pointer_add(&spot, key);
        if (pd_buf_err(&path) != PD_OK || pd_buf_err(&spot) != PD_OK) {
            c->nomem = true;
        } else {
            /* A key with a slash must not pass for a path. */
            f = strchr(key, '/') ? NULL : job_field_find(path.data);
            if (f) {
                if (f->type == JOB_T_OBJECT && json_is_object(child))
                    job_keys_check(c, child, path.data, spot.data);
            } else if (!strchr(key, '/') && job_field_below(path.data)) {
                if (json_is_object(child))
                    job_keys_check(c, child, path.data, spot.data);
                else
                    job_report_error(c->report, spot.data, "must be an object, not %s", job_json_kind(child));
            } else {
                job_report_error(c->report, spot.data, "%s",
                                 job_keys_unknown(sentence, sizeof sentence, pointer, key));
            }
        }
        pd_buf_done(&path);
        pd_buf_done(&spot);
    }
}
