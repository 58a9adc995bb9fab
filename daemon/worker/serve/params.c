#include "daemon/worker/serve/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A cursor over the text. `bad` sticks, and every reader returns something harmless after it. */
struct reader {
    const char *at, *end;
    const char *bad; /* what is wrong; NULL = nothing */
};

static void spoil(struct reader *r, const char *what)
{
    if (!r->bad)
        r->bad = what;
    r->at = r->end;
}

static void skip_blank(struct reader *r)
{
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

/* The next character that is not blank, or 0. */
static char peek(struct reader *r)
{
    skip_blank(r);
    return r->at < r->end ? *r->at : 0;
}

static bool take(struct reader *r, char c)
{
    if (peek(r) != c)
        return false;
    r->at++;
    return true;
}

static bool take_literal(struct reader *r, const char *word)
{
    size_t len = strlen(word);

    skip_blank(r);
    if ((size_t)(r->end - r->at) < len || memcmp(r->at, word, len) != 0)
        return false;
    r->at += len;
    return true;
}

static unsigned read_hex4(struct reader *r)
{
    unsigned value = 0;

    for (int i = 0; i < 4; i++) {
        char c = r->at < r->end ? *r->at++ : 0;

        if (c >= '0' && c <= '9')
            value = value * 16 + (unsigned)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            value = value * 16 + (unsigned)((c | 32) - 'a') + 10;
        else {
            spoil(r, "a broken \\u escape");
            return 0;
        }
    }
    return value;
}

static size_t put_utf8(unsigned code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* What stands after a backslash; bytes written into `out`. */
static size_t read_escape(struct reader *r, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at++ : 0;
    const char *found = c ? strchr(from, c) : NULL;
    unsigned code;

    if (found) {
        out[0] = to[found - from];
        return 1;
    }
    if (c != 'u') {
        spoil(r, "an unknown escape");
        return 0;
    }
    code = read_hex4(r);
    if (code >= 0xd800 && code < 0xdc00) {
        unsigned low;

        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u') {
            spoil(r, "half a surrogate pair");
            return 0;
        }
        r->at += 2;
        low = read_hex4(r);
        if (low < 0xdc00 || low > 0xdfff) {
            spoil(r, "half a surrogate pair");
            return 0;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        spoil(r, "half a surrogate pair");
        return 0;
    }
    return put_utf8(code, out);
}

/* Reads a string of at most `size` bytes into `out` (not terminated); returns its length. */
static size_t read_string(struct reader *r, char *out, size_t size)
{
    size_t len = 0;

    if (!take(r, '"')) {
        spoil(r, "expected a string");
        return 0;
    }
    while (r->at < r->end && *r->at != '"') {
        char bytes[4];
        size_t n = 1;

        if ((unsigned char)*r->at < 0x20) {
            spoil(r, "a control character in a string");
            return 0;
        }
        if (*r->at == '\\') {
            r->at++;
            n = read_escape(r, bytes);
        } else {
            bytes[0] = *r->at++;
        }
        if (r->bad)
            return 0;
        if (len + n > size) {
            spoil(r, "a string that is too long");
            return 0;
        }
        memcpy(out + len, bytes, n);
        len += n;
    }
    if (r->at == r->end) {
        spoil(r, "a string without an end");
        return 0;
    }
    r->at++;
    return len;
}

/* The text of a number as JSON writes it, NUL-terminated in `out`. */
static bool read_number_text(struct reader *r, char *out, size_t size)
{
    const char *p, *digits;
    size_t len;

    skip_blank(r);
    p = r->at;
    if (p < r->end && *p == '-')
        p++;
    digits = p;
    while (p < r->end && *p >= '0' && *p <= '9')
        p++;
    if (p == digits || (*digits == '0' && p - digits > 1))
        goto bad;
    if (p < r->end && *p == '.') {
        digits = ++p;
        while (p < r->end && *p >= '0' && *p <= '9')
            p++;
        if (p == digits)
            goto bad;
    }
    if (p < r->end && (*p | 32) == 'e') {
        p++;
        if (p < r->end && (*p == '+' || *p == '-'))
            p++;
        digits = p;
        while (p < r->end && *p >= '0' && *p <= '9')
            p++;
        if (p == digits)
            goto bad;
    }
    len = (size_t)(p - r->at);
    if (len >= size)
        goto bad;
    memcpy(out, r->at, len);
    out[len] = 0;
    r->at = p;
    return true;
bad:
    spoil(r, "expected a number");
    return false;
}

static double read_number(struct reader *r)
{
    char text[64];

    return read_number_text(r, text, sizeof text) ? strtod(text, NULL) : 0;
}

/* A number within bounds. */
static double read_range(struct reader *r, double least, double most, const char *else_what)
{
    double value = read_number(r);

    if (!r->bad && !(value >= least && value <= most))
        spoil(r, else_what);
    return r->bad ? least : value;
}

static int32_t read_int(struct reader *r, int32_t least, int32_t most, const char *else_what)
{
    double value = read_range(r, least, most, else_what);

    if (!r->bad && value != floor(value))
        spoil(r, else_what);
    return (int32_t)value;
}

static uint64_t read_seed(struct reader *r)
{
    char text[64];
    bool whole;

    if (!read_number_text(r, text, sizeof text))
        return 0;
    whole = text[strspn(text, "-0123456789")] == 0 && strlen(text) <= 20;
    if (!whole) {
        spoil(r, "must be a whole number of 64 bits");
        return 0;
    }
    return text[0] == '-' ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
}

static bool read_bool(struct reader *r)
{
    if (take_literal(r, "true"))
        return true;
    if (!take_literal(r, "false"))
        spoil(r, "must be true or false");
    return false;
}

static void read_stop(struct reader *r, struct serve_params *p)
{
    struct serve_sampling *s = &p->sampling;
    bool list;

    if (take_literal(r, "null"))
        return;
    list = take(r, '[');
    if (list && take(r, ']'))
        return;
    do {
        uint32_t i = s->stops;

        if (i == SERVE_STOPS_MAX) {
            spoil(r, "holds more than 4 strings");
            return;
        }
        s->stop[i].len = read_string(r, p->stop_bytes[i], SERVE_STOP_BYTES_MAX);
        s->stop[i].bytes = p->stop_bytes[i];
        if (r->bad)
            return;
        if (s->stop[i].len == 0) {
            spoil(r, "holds an empty string");
            return;
        }
        s->stops++;
    } while (list && take(r, ','));
    if (list && !take(r, ']'))
        spoil(r, "expected ',' or ']'");
}

static void read_bias(struct reader *r, struct serve_params *p)
{
    struct serve_sampling *s = &p->sampling;

    if (take_literal(r, "null"))
        return;
    if (!take(r, '{')) {
        spoil(r, "must be an object");
        return;
    }
    if (take(r, '}'))
        return;
    do {
        char key[12], *end;
        size_t len = read_string(r, key, sizeof key - 1);
        long token;

        if (r->bad)
            return;
        key[len] = 0;
        token = strtol(key, &end, 10);
        if (len == 0 || *end || key[0] < '0' || key[0] > '9' || token > INT32_MAX) {
            spoil(r, "holds a key that is not a token id");
            return;
        }
        if (s->biases == SERVE_BIAS_MAX) {
            spoil(r, "holds more than 300 entries");
            return;
        }
        if (!take(r, ':')) {
            spoil(r, "expected ':'");
            return;
        }
        p->bias[s->biases].token = (int32_t)token;
        p->bias[s->biases].bias = (float)read_range(r, -100, 100, "holds a bias outside -100..100");
        s->biases++;
    } while (take(r, ','));
    if (!take(r, '}'))
        spoil(r, "expected ',' or '}'");
}

/* Which of `count` names stand in an array, by bits. */
static void read_names(struct reader *r, const char *const *names, size_t count, const char *unknown,
                       unsigned *ret)
{
    *ret = 0;
    if (!take(r, '[')) {
        spoil(r, "must be an array of names");
        return;
    }
    if (take(r, ']')) {
        spoil(r, "names no output");
        return;
    }
    do {
        char name[32];
        size_t len = read_string(r, name, sizeof name - 1), i;

        if (r->bad)
            return;
        name[len] = 0;
        for (i = 0; i < count && strcmp(name, names[i]) != 0; i++)
            ;
        if (i == count) {
            spoil(r, unknown);
            return;
        }
        *ret |= 1u << i;
    } while (take(r, ','));
    if (!take(r, ']'))
        spoil(r, "expected ',' or ']'");
}

static void read_outputs(struct reader *r, struct serve_params *p)
{
    static const char *const names[] = {"logits", "probabilities", "class", "label"};

    read_names(r, names, sizeof names / sizeof *names,
               "names an unknown output (there are logits, probabilities, class, label)", &p->outputs);
}

static void read_field_outputs(struct reader *r, struct serve_params *p)
{
    static const char *const names[] = {"u"};

    read_names(r, names, 1, "names an unknown output (there is u)", &p->outputs);
}

static void read_max_tokens(struct reader *r, struct serve_params *p)
{
    p->sampling.max_tokens = read_int(r, 0, SERVE_TOKENS_MAX, "must be a whole number in 0..65536");
}

static void read_temperature(struct reader *r, struct serve_params *p)
{
    p->sampling.temperature = read_range(r, 0, 2, "must be a number in 0..2");
}

static void read_top_p(struct reader *r, struct serve_params *p)
{
    p->sampling.top_p = read_range(r, 0, 1, "must be a number in 0..1");
}

static void read_top_k(struct reader *r, struct serve_params *p)
{
    p->sampling.top_k = read_int(r, 0, SERVE_TOP_K_MAX, "must be a whole number in 0..1000000");
}

static void read_min_p(struct reader *r, struct serve_params *p)
{
    p->sampling.min_p = read_range(r, 0, 1, "must be a number in 0..1");
}

static void read_repetition(struct reader *r, struct serve_params *p)
{
    p->sampling.repetition_penalty = read_range(r, 0.1, 10, "must be a number in 0.1..10");
}

static void read_presence(struct reader *r, struct serve_params *p)
{
    p->sampling.presence_penalty = read_range(r, -2, 2, "must be a number in -2..2");
}

static void read_frequency(struct reader *r, struct serve_params *p)
{
    p->sampling.frequency_penalty = read_range(r, -2, 2, "must be a number in -2..2");
}

static void read_seed_member(struct reader *r, struct serve_params *p)
{
    p->sampling.seed = read_seed(r);
}

static void read_logprobs(struct reader *r, struct serve_params *p)
{
    if (!take_literal(r, "null"))
        p->sampling.logprobs =
            read_int(r, 0, (int32_t)SERVE_TOP_MAX, "must be null or a whole number in 0..5");
}

static void read_echo(struct reader *r, struct serve_params *p)
{
    p->sampling.echo = read_bool(r);
}

static void read_stream(struct reader *r, struct serve_params *p)
{
    p->stream = read_bool(r);
}

struct member {
    const char *name;
    void (*read)(struct reader *r, struct serve_params *p);
};

static const struct member complete_members[] = {
    {"max_tokens", read_max_tokens},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"top_k", read_top_k},
    {"min_p", read_min_p},
    {"repetition_penalty", read_repetition},
    {"presence_penalty", read_presence},
    {"frequency_penalty", read_frequency},
    {"seed", read_seed_member},
    {"logprobs", read_logprobs},
    {"echo", read_echo},
    {"stop", read_stop},
    {"logit_bias", read_bias},
    {"stream", read_stream},
};

static const struct member infer_members[] = {
    {"outputs", read_outputs},
};

static const struct member field_members[] = {
    {"outputs", read_field_outputs},
};

static enum pd_err read_object(const char *json, size_t len, const struct member *members, size_t count,
                               struct serve_params *ret, struct pd_why *why)
{
    struct reader r = {.at = json, .end = json + len};
    uint32_t seen = 0;

    memset(ret, 0, sizeof *ret);
    serve_sampling_default(&ret->sampling);
    ret->sampling.bias = ret->bias;
    ret->outputs = SERVE_OUT_ALL;
    if (!take(&r, '{'))
        return pd_fail(why, PD_ERR_CORRUPT, "the parameters are not a JSON object");
    if (!take(&r, '}')) {
        do {
            char name[32];
            size_t n = read_string(&r, name, sizeof name - 1), i;

            if (r.bad)
                return pd_fail(why, PD_ERR_CORRUPT, "the parameters contain %s", r.bad);
            name[n] = 0;
            if (!take(&r, ':'))
                return pd_fail(why, PD_ERR_CORRUPT, "parameter '%s' has no value", name);
            for (i = 0; i < count && strcmp(members[i].name, name) != 0; i++)
                ;
            if (i == count)
                return pd_fail(why, PD_ERR_INVALID, "unknown parameter '%s'", name);
            if (seen & 1u << i)
                return pd_fail(why, PD_ERR_INVALID, "parameter '%s' is given twice", name);
            seen |= 1u << i;
            members[i].read(&r, ret);
            if (r.bad)
                return pd_fail(why, PD_ERR_INVALID, "parameter '%s': %s", name, r.bad);
        } while (take(&r, ','));
        if (!take(&r, '}'))
            return pd_fail(why, PD_ERR_CORRUPT, "the parameters lack ',' or '}'");
    }
    if (peek(&r) || r.at != r.end)
        return pd_fail(why, PD_ERR_CORRUPT, "the parameters are followed by further text");
    return PD_OK;
}

enum pd_err serve_params_complete(const char *json, size_t len, struct serve_params *ret, struct pd_why *why)
{
    return read_object(json, len, complete_members, sizeof complete_members / sizeof complete_members[0], ret,
                       why);
}

enum pd_err serve_params_infer(const char *json, size_t len, struct serve_params *ret, struct pd_why *why)
{
    return read_object(json, len, infer_members, sizeof infer_members / sizeof infer_members[0], ret, why);
}

enum pd_err serve_params_field(const char *json, size_t len, struct serve_params *ret, struct pd_why *why)
{
    return read_object(json, len, field_members, sizeof field_members / sizeof field_members[0], ret, why);
}
