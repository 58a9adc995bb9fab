#include "kernels/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum pd_err pd_fail(struct pd_why *why, enum pd_err err, const char *fmt, ...)
{
    if (why) {
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(why->text, sizeof why->text, fmt, ap);
        va_end(ap);
    }
    return err;
}

static enum pd_err err_of_errno(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return PD_ERR_FULL;
    case ENOENT:
    case ENOTDIR:
        return PD_ERR_NOT_FOUND;
    case ENOMEM:
        return PD_ERR_NOMEM;
    case EACCES:
    case EPERM:
    case ELOOP:
        return PD_ERR_DENIED;
    case EEXIST:
        return PD_ERR_EXISTS;
    default:
        return PD_ERR_IO;
    }
}

enum pd_err pd_fail_errno(struct pd_why *why, int errnum, const char *fmt, ...)
{
    if (why) {
        va_list ap;
        int n;

        va_start(ap, fmt);
        n = vsnprintf(why->text, sizeof why->text, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof why->text)
            snprintf(why->text + n, sizeof why->text - (size_t)n, ": %s", strerror(errnum));
    }
    return err_of_errno(errnum);
}

bool pd_err_lasting(enum pd_err err)
{
    switch (err) {
    case PD_ERR_INVALID:
    case PD_ERR_NOT_FOUND:
    case PD_ERR_EXISTS:
    case PD_ERR_CORRUPT:
    case PD_ERR_VERSION:
    case PD_ERR_LIMIT:
    case PD_ERR_DENIED:
    case PD_ERR_UNSUPPORTED:
        return true;
    default:
        return false;
    }
}

void pd_why_at(struct pd_why *why, const char *place)
{
    size_t len = strlen(place);

    if (!why || !strncmp(why->text, "#/", 2) || len + 3 > sizeof why->text)
        return;
    memmove(why->text + len + 2, why->text, sizeof why->text - len - 2);
    memcpy(why->text, place, len);
    memcpy(why->text + len, ": ", 2);
    why->text[sizeof why->text - 1] = '\0';
}

const char *pd_why_place(const char *text, char *ret_place, size_t size)
{
    const char *colon = !strncmp(text, "#/", 2) ? strstr(text, ": ") : NULL;

    snprintf(ret_place, size, "%.*s", colon ? (int)(colon - text) : 1, colon ? text : "#");
    return colon ? colon + 2 : text;
}

const char *pd_err_name(enum pd_err err)
{
    static const char *const names[PD_ERR_COUNT] = {
        [PD_OK] = "ok",
        [PD_ERR_NOMEM] = "no_memory",
        [PD_ERR_INVALID] = "invalid",
        [PD_ERR_NOT_FOUND] = "not_found",
        [PD_ERR_EXISTS] = "exists",
        [PD_ERR_CONFLICT] = "conflict",
        [PD_ERR_STALE] = "stale",
        [PD_ERR_IO] = "io",
        [PD_ERR_FULL] = "disk_full",
        [PD_ERR_CORRUPT] = "corrupt",
        [PD_ERR_VERSION] = "version",
        [PD_ERR_LIMIT] = "limit",
        [PD_ERR_BUSY] = "busy",
        [PD_ERR_TIMEOUT] = "timeout",
        [PD_ERR_CANCELLED] = "cancelled",
        [PD_ERR_CLOSED] = "closed",
        [PD_ERR_DENIED] = "denied",
        [PD_ERR_UNSUPPORTED] = "unsupported",
        [PD_ERR_INTERNAL] = "internal",
    };

    return (unsigned)err < PD_ERR_COUNT ? names[err] : "unknown";
}
