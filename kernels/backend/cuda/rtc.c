/* NVRTC: opening the library, compiling with a limit of time, the folder of compiled code. No device is needed here;
 * rtc_load.c brings the code onto one. */
#include "kernels/backend/cuda/rtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <utime.h>

#include "kernels/backend/cuda/rtc_headers.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/file.h"
#include "kernels/base/tree.h"

/* Of nvrtc.h, whose numbers have not changed since CUDA 11.2. */
typedef struct nvrtc_program_opaque *nvrtc_program;
struct nvrtc {
    int (*version)(int *major, int *minor);
    const char *(*error)(int result);
    int (*create)(nvrtc_program *ret, const char *source, const char *name, int headers,
                  const char *const *texts, const char *const *names);
    int (*destroy)(nvrtc_program *p);
    int (*compile)(nvrtc_program p, int options, const char *const *option);
    int (*log_size)(nvrtc_program p, size_t *size);
    int (*log)(nvrtc_program p, char *out);
    int (*cubin_size)(nvrtc_program p, size_t *size);
    int (*cubin)(nvrtc_program p, char *out);
    int (*ptx_size)(nvrtc_program p, size_t *size);
    int (*ptx)(nvrtc_program p, char *out);
    int (*archs_count)(int *count);
    int (*archs)(int *archs);
};

static struct nvrtc nvrtc;
static bool nvrtc_there;
static pthread_once_t nvrtc_once = PTHREAD_ONCE_INIT;

static void open_library(void)
{
    static const struct {
        const char *name;
        size_t at;
    } symbols[] = {{"nvrtcVersion", offsetof(struct nvrtc, version)},
                   {"nvrtcGetErrorString", offsetof(struct nvrtc, error)},
                   {"nvrtcCreateProgram", offsetof(struct nvrtc, create)},
                   {"nvrtcDestroyProgram", offsetof(struct nvrtc, destroy)},
                   {"nvrtcCompileProgram", offsetof(struct nvrtc, compile)},
                   {"nvrtcGetProgramLogSize", offsetof(struct nvrtc, log_size)},
                   {"nvrtcGetProgramLog", offsetof(struct nvrtc, log)},
                   {"nvrtcGetCUBINSize", offsetof(struct nvrtc, cubin_size)},
                   {"nvrtcGetCUBIN", offsetof(struct nvrtc, cubin)},
                   {"nvrtcGetPTXSize", offsetof(struct nvrtc, ptx_size)},
                   {"nvrtcGetPTX", offsetof(struct nvrtc, ptx)},
                   {"nvrtcGetNumSupportedArchs", offsetof(struct nvrtc, archs_count)},
                   {"nvrtcGetSupportedArchs", offsetof(struct nvrtc, archs)}};
    const char *named = getenv("POLYD_NVRTC");
    const char *const names[] = {named && *named ? named : "libnvrtc.so.13", "libnvrtc.so.12",
                                 "/usr/local/cuda/lib64/libnvrtc.so"};

    for (size_t n = 0; n < (named && *named ? 1 : sizeof names / sizeof *names); n++) {
        void *library = dlopen(names[n], RTLD_NOW | RTLD_LOCAL);
        bool whole = library != NULL;

        for (size_t k = 0; whole && k < sizeof symbols / sizeof *symbols; k++) {
            void *f = dlsym(library, symbols[k].name);

            memcpy((char *)&nvrtc + symbols[k].at, &f, sizeof f);
            whole = f != NULL;
        }
        if (whole) {
            nvrtc_there = true;
            return;
        }
        if (library)
            dlclose(library);
    }
}

static enum pd_err opened(struct pd_why *why)
{
    (void)pthread_once(&nvrtc_once, open_library);
    return nvrtc_there
               ? PD_OK
               : pd_fail(why, PD_ERR_UNSUPPORTED,
                         "a formula on a GPU needs NVRTC 12 or newer, and no libnvrtc.so opens here; the CPU "
                         "computes formulas without it");
}

enum pd_err cuda_rtc_version(char *out, size_t size, struct pd_why *why)
{
    int major = 0, minor = 0;
    enum pd_err err = opened(why);

    if (err != PD_OK)
        return err;
    if (nvrtc.version(&major, &minor) != 0)
        return pd_fail(why, PD_ERR_IO, "NVRTC does not report its version");
    snprintf(out, size, "%d.%d", major, minor);
    return PD_OK;
}

/* ---- compiling ---- */

/* One compilation in a thread of its own: NVRTC cannot be interrupted. The last to leave frees it. */
struct job {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done, left;
    char *source;
    char arch[32];
    bool ptx;
    enum pd_err err;
    struct pd_why why;
    struct pd_buf image;
};

static void job_free(struct job *j)
{
    pthread_cond_destroy(&j->ended);
    pthread_mutex_destroy(&j->lock);
    pd_buf_done(&j->image);
    free(j->source);
    free(j);
}

static enum pd_err refused(nvrtc_program p, int result, struct pd_why *why)
{
    size_t size = 0;
    char *log = NULL;
    enum pd_err err;

    if (p && nvrtc.log_size(p, &size) == 0 && size > 1 && (log = malloc(size + 1)) != NULL)
        log[nvrtc.log(p, log) == 0 ? size : 0] = '\0';
    err = pd_fail(why, PD_ERR_INVALID, "NVRTC: %s%s%.400s", nvrtc.error(result), log ? ": " : "",
                  log ? log : "");
    free(log);
    return err;
}

/* In addition to the architecture. Denormals are zero, as on the CPU, so that exp, log and division need no special cases. */
static const char *const option[] = {"-std=c++17", "-default-device", "-w", "--ftz=true",
                                     "--prec-sqrt=false"};
#define OPTIONS ((int)(sizeof option / sizeof *option))

static enum pd_err compile(struct job *j)
{
    const char *options[1 + OPTIONS] = {j->arch};
    nvrtc_program p = NULL;
    size_t size = 0;
    char *to;
    enum pd_err err = PD_OK;
    int result;

    memcpy(options + 1, option, sizeof option);
    result = nvrtc.create(&p, j->source, "formula.cu", cuda_rtc_headers, cuda_rtc_header_text,
                          cuda_rtc_header_name);
    if (result == 0)
        result = nvrtc.compile(p, 1 + OPTIONS, options);
    if (result == 0)
        result = j->ptx ? nvrtc.ptx_size(p, &size) : nvrtc.cubin_size(p, &size);
    if (result != 0) {
        err = refused(p, result, &j->why);
    } else {
        to = pd_buf_reserve(&j->image, size);
        if (!to)
            err = pd_fail(&j->why, PD_ERR_NOMEM, "no memory for compiled code");
        else if ((result = j->ptx ? nvrtc.ptx(p, to) : nvrtc.cubin(p, to)) != 0)
            err = refused(p, result, &j->why);
    }
    if (p)
        (void)nvrtc.destroy(&p);
    return err;
}

static void *compile_thread(void *arg)
{
    struct job *j = arg;
    bool alone;

    j->err = compile(j);
    pthread_mutex_lock(&j->lock);
    j->done = true;
    alone = j->left;
    pthread_cond_signal(&j->ended);
    pthread_mutex_unlock(&j->lock);
    if (alone)
        job_free(j);
    return NULL;
}

static enum pd_err compile_within(struct job *j, int64_t limit_ms, struct pd_buf *out, struct pd_why *why)
{
    struct timespec until;
    pthread_attr_t attr;
    pthread_t thread;
    enum pd_err err;
    int failed;
    bool done;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &attr, compile_thread, j);
    pthread_attr_destroy(&attr);
    if (failed) {
        job_free(j);
        return pd_fail(why, PD_ERR_NOMEM, "cannot start a thread for NVRTC");
    }
    pthread_mutex_lock(&j->lock);
    while (!j->done && pthread_cond_timedwait(&j->ended, &j->lock, &until) == 0)
        ;
    done = j->done;
    j->left = true;
    pthread_mutex_unlock(&j->lock);
    if (!done)
        return pd_fail(why, PD_ERR_TIMEOUT, "NVRTC has not compiled the formula within %g s",
                       (double)limit_ms / 1000);
    err = j->err;
    if (err == PD_OK)
        pd_buf_append(out, j->image.data, j->image.len);
    else if (why)
        *why = j->why;
    job_free(j);
    return err;
}

/* "-arch=sm_90a" for a cubin, or "-arch=compute_100" for PTX of the newest architecture. */
static enum pd_err arch_of(int sm, char *out, size_t size, bool *ret_ptx, struct pd_why *why)
{
    int count = 0, *archs, newest = 0;
    bool known = false;

    if (nvrtc.archs_count(&count) != 0 || count < 1 || !(archs = calloc((size_t)count, sizeof *archs)))
        return pd_fail(why, PD_ERR_IO, "NVRTC does not report its architectures");
    if (nvrtc.archs(archs) != 0)
        count = 0;
    for (int k = 0; k < count; k++) {
        known = known || archs[k] == sm;
        newest = archs[k] > newest ? archs[k] : newest;
    }
    free(archs);
    if (!known && newest > sm)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this NVRTC has no code for compute capability %d.%d",
                       sm / 10, sm % 10);
    *ret_ptx = !known;
    snprintf(out, size, known ? "-arch=sm_%d%s" : "-arch=compute_%d%s", known ? sm : newest,
             known && sm == 90 ? "a" : "");
    return PD_OK;
}

/* ---- the folder ---- */

#define MAGIC "polyd-rtc-1"

/* A file is: MAGIC, length of the key, length of the code and its CRC as a line of text; the key; the code. The key is
 * everything that the code depends on, and is compared whole. */
static void key_of(const char *source, const char *arch, struct pd_buf *key)
{
    int major = 0, minor = 0;

    (void)nvrtc.version(&major, &minor);
    pd_buf_printf(key, "%d.%d %s", major, minor, arch);
    for (int k = 0; k < OPTIONS; k++)
        pd_buf_printf(key, " %s", option[k]);
    pd_buf_str(key, "\n");
    for (int k = 0; k < cuda_rtc_headers; k++)
        pd_buf_printf(key, "%s %zu %08x\n", cuda_rtc_header_name[k], strlen(cuda_rtc_header_text[k]),
                      pd_crc32c(0, cuda_rtc_header_text[k], strlen(cuda_rtc_header_text[k])));
    pd_buf_str(key, source);
}

static bool path_of(const char *folder, const struct pd_buf *key, char *out, size_t size)
{
    uint64_t h = 14695981039346656037u;
    int n;

    for (size_t i = 0; i < key->len; i++)
        h = (h ^ (unsigned char)key->data[i]) * 1099511628211u;
    n = snprintf(out, size, "%s/%016llx.rtc", folder, (unsigned long long)h);
    return n > 0 && (size_t)n < size;
}

static bool find(const char *path, const struct pd_buf *key, struct pd_buf *out)
{
    struct pd_buf file;
    size_t key_len = 0, code_len = 0, head;
    unsigned crc = 0;
    bool found = false;
    char *line;

    pd_buf_init(&file, 0);
    if (pd_file_read(path, 64 << 20, &file, NULL) == PD_OK && file.len > 0 &&
        (line = memchr(file.data, '\n', file.len)) != NULL &&
        sscanf(file.data, MAGIC " %zu %zu %x", &key_len, &code_len, &crc) == 3) {
        head = (size_t)(line - file.data) + 1;
        found = key_len == key->len && code_len > 0 && code_len <= file.len &&
                head + key_len + code_len == file.len && memcmp(file.data + head, key->data, key_len) == 0 &&
                pd_crc32c(0, file.data + head + key_len, code_len) == crc;
        if (found)
            pd_buf_append(out, file.data + head + key_len, code_len);
    }
    pd_buf_done(&file);
    if (found)
        (void)utime(path, NULL); /* the oldest go first */
    return found;
}

/* A cache that cannot be written costs time, nothing else. */
static void put(const char *folder, const char *path, const struct pd_buf *key, const struct pd_buf *code)
{
    struct pd_buf file;
    struct pd_tree tree;
    int64_t freed;

    pd_buf_init(&file, 0);
    pd_buf_printf(&file, MAGIC " %zu %zu %08x\n", key->len, code->len, pd_crc32c(0, code->data, code->len));
    pd_buf_append(&file, key->data, key->len);
    pd_buf_append(&file, code->data, code->len);
    if (pd_buf_err(&file) == PD_OK && pd_file_make_dirs(folder, NULL) == PD_OK &&
        pd_file_replace(path, file.data, file.len, 0640, NULL) == PD_OK &&
        pd_folder_measure(folder, ".rtc", &tree, NULL) == PD_OK && tree.bytes > CUDA_RTC_CACHE_BYTES) {
        enum pd_err err = pd_folder_trim(folder, ".rtc", tree.bytes - CUDA_RTC_CACHE_BYTES, false, NULL, NULL,
                                         &freed, NULL);

        (void)err;
    }
    pd_buf_done(&file);
}

enum pd_err cuda_rtc_compile(const char *source, int sm, const char *folder, int64_t limit_ms,
                             struct pd_buf *out, bool *ret_cached, struct pd_why *why)
{
    struct pd_buf key, code;
    pthread_condattr_t monotonic;
    struct job *j;
    char path[4096], arch[32];
    bool ptx = false, kept;
    enum pd_err err = opened(why);

    if (ret_cached)
        *ret_cached = false;
    if (err == PD_OK)
        err = arch_of(sm, arch, sizeof arch, &ptx, why);
    if (err != PD_OK)
        return err;
    pd_buf_init(&key, 0);
    pd_buf_init(&code, 0);
    key_of(source, arch, &key);
    kept = folder && pd_buf_err(&key) == PD_OK && path_of(folder, &key, path, sizeof path);
    if (kept && find(path, &key, out)) {
        if (ret_cached)
            *ret_cached = true;
        goto out;
    }
    j = calloc(1, sizeof *j);
    if (!j || !(j->source = strdup(source))) {
        free(j);
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to compile a formula");
        goto out;
    }
    pthread_mutex_init(&j->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&j->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pd_buf_init(&j->image, 0);
    snprintf(j->arch, sizeof j->arch, "%s", arch);
    j->ptx = ptx;
    err = compile_within(j, limit_ms, &code, why);
    if (err == PD_OK) {
        pd_buf_append(out, code.data, code.len);
        if (kept)
            put(folder, path, &key, &code);
    }
out:
    if (err == PD_OK && pd_buf_err(out) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for compiled code");
    pd_buf_done(&key);
    pd_buf_done(&code);
    return err;
}
