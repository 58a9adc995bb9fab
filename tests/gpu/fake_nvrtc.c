/* A compiler of kernels that compiles nothing, for tests: the library that POLYD_NVRTC names. Its code for an architecture
 * that it knows (sm 80, 90, 100) begins as an ELF file does. Read at every compilation:
 *   POLYD_FAKE_NVRTC_MS=N        it takes N milliseconds
 *   POLYD_FAKE_NVRTC_ERROR=TEXT  it fails, and TEXT is its log */
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, OUT_OF_MEMORY = 1, COMPILATION = 6 };

static const char code[] = "\177ELF code of no machine";

struct program {
    const char *log;
};

int nvrtcVersion(int *major, int *minor);
const char *nvrtcGetErrorString(int result);
int nvrtcCreateProgram(struct program **ret, const char *source, const char *name, int headers,
                       const char *const *texts, const char *const *names);
int nvrtcDestroyProgram(struct program **p);
int nvrtcCompileProgram(struct program *p, int options, const char *const *option);
int nvrtcGetProgramLogSize(const struct program *p, size_t *size);
int nvrtcGetProgramLog(const struct program *p, char *out);
int nvrtcGetCUBINSize(const struct program *p, size_t *size);
int nvrtcGetCUBIN(const struct program *p, char *out);
int nvrtcGetPTXSize(const struct program *p, size_t *size);
int nvrtcGetPTX(const struct program *p, char *out);
int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetSupportedArchs(int *archs);

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return OK;
}

const char *nvrtcGetErrorString(int result)
{
    return result == OK ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}

int nvrtcCreateProgram(struct program **ret, const char *source, const char *name, int headers,
                       const char *const *texts, const char *const *names)
{
    (void)source, (void)name, (void)headers, (void)texts, (void)names;
    *ret = calloc(1, sizeof **ret);
    return *ret ? OK : OUT_OF_MEMORY;
}

int nvrtcDestroyProgram(struct program **p)
{
    free(*p);
    *p = NULL;
    return OK;
}

int nvrtcCompileProgram(struct program *p, int options, const char *const *option)
{
    const char *ms = getenv("POLYD_FAKE_NVRTC_MS");
    const long wait = ms ? strtol(ms, NULL, 10) : 0;
    const struct timespec time = {.tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000};

    (void)options, (void)option;
    nanosleep(&time, NULL);
    p->log = getenv("POLYD_FAKE_NVRTC_ERROR");
    return p->log ? COMPILATION : OK;
}

int nvrtcGetProgramLogSize(const struct program *p, size_t *size)
{
    *size = p->log ? strlen(p->log) + 1 : 1;
    return OK;
}

int nvrtcGetProgramLog(const struct program *p, char *out)
{
    strcpy(out, p->log ? p->log : "");
    return OK;
}

int nvrtcGetCUBINSize(const struct program *p, size_t *size)
{
    (void)p;
    *size = sizeof code;
    return OK;
}

int nvrtcGetCUBIN(const struct program *p, char *out)
{
    (void)p;
    memcpy(out, code, sizeof code);
    return OK;
}

int nvrtcGetPTXSize(const struct program *p, size_t *size)
{
    return nvrtcGetCUBINSize(p, size);
}

int nvrtcGetPTX(const struct program *p, char *out)
{
    return nvrtcGetCUBIN(p, out);
}

int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 3;
    return OK;
}

int nvrtcGetSupportedArchs(int *archs)
{
    static const int known[] = {80, 90, 100};

    memcpy(archs, known, sizeof known);
    return OK;
}
