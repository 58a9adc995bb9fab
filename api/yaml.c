#include "api/yaml.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"

#define DEPTH_MAX 64

struct line {
    const char *text; /* without indentation */
    size_t len;       /* without comment and trailing blanks */
    int indent;
    int number;
};

struct parser {
    struct line *lines;
    size_t count, at;
    struct pd_buf *out;
    struct pd_why *why;
    int depth;
};

static enum pd_err bad(struct parser *p, int line, const char *what)
{
    return pd_fail(p->why, PD_ERR_INVALID, "line %d: %s", line, what);
}

/* Where the line's content ends: before a comment (" #" outside quotes) and trailing blanks. */
static size_t content_len(const char *text, size_t len)
{
    char quote = 0;
    size_t end = len;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (quote) {
            if (c == '\\' && quote == '"')
                i++;
            else if (c == quote)
                quote = 0;
        } else if ((c == '"' || c == '\'') && (i == 0 || strchr(" [{,:", text[i - 1]))) {
            quote = c;
        } else if (c == '#' && (i == 0 || text[i - 1] == ' ')) {
            end = i;
            break;
        }
    }
    while (end && (text[end - 1] == ' ' || text[end - 1] == '\r'))
        end--;
    return end;
}

/* A quoted scalar at *at; leaves *at behind it. The JSON text goes to out. */
static enum pd_err quoted(struct parser *p, const struct line *l, size_t *at)
{
    char quote = l->text[*at];
    size_t i = *at + 1;
    struct pd_buf text;
    enum pd_err err;

    pd_buf_init(&text, 0);
    for (; i < l->len; i++) {
        char c = l->text[i];

        if (c == quote && quote == '\'' && i + 1 < l->len && l->text[i + 1] == '\'') {
            i++;
        } else if (c == quote) {
            break;
        } else if (c == '\\' && quote == '"' && i + 1 < l->len) {
            c = l->text[++i];
            if (c == 'n')
                c = '\n';
            else if (c == 't')
                c = '\t';
            else if (c != '"' && c != '\\' && c != '/') {
                pd_buf_done(&text);
                return bad(p, l->number, "an escape that is not supported");
            }
        }
        pd_buf_append(&text, &c, 1);
    }
    if (i >= l->len) {
        pd_buf_done(&text);
        return bad(p, l->number, "a quote without its end");
    }
    err = pd_buf_err(&text);
    if (err == PD_OK)
        api_json_strn(p->out, text.data ? text.data : "", text.len);
    pd_buf_done(&text);
    *at = i + 1;
    return err;
}

static bool is_number(const char *text, size_t len)
{
    size_t i = 0, digits = 0;

    if (i < len && text[i] == '-')
        i++;
    if (len - i > 1 && text[i] == '0' && isdigit((unsigned char)text[i + 1]))
        return false;
    for (; i < len && isdigit((unsigned char)text[i]); i++)
        digits++;
    if (digits == 0)
        return false;
    if (i < len && text[i] == '.') {
        size_t fraction = 0;

        for (i++; i < len && isdigit((unsigned char)text[i]); i++)
            fraction++;
        if (fraction == 0 || (i < len)) /* "3.1.0" is text */
            return false;
    }
    return i == len;
}

static void plain(struct parser *p, const char *text, size_t len, bool key)
{
    if (!key && (len == 0 || (len == 1 && *text == '~') || (len == 4 && memcmp(text, "null", 4) == 0)))
        api_json_null(p->out);
    else if (!key && len == 4 && memcmp(text, "true", 4) == 0)
        api_json_bool(p->out, true);
    else if (!key && len == 5 && memcmp(text, "false", 5) == 0)
        api_json_bool(p->out, false);
    else if (!key && is_number(text, len)) {
        char number[64];

        if (len < sizeof number) {
            memcpy(number, text, len);
            number[len] = '\0';
            api_json_raw(p->out, number);
        } else {
            api_json_strn(p->out, text, len);
        }
    } else {
        api_json_strn(p->out, text, len);
    }
}

static void skip_blanks(const struct line *l, size_t *at)
{
    while (*at < l->len && l->text[*at] == ' ')
        (*at)++;
}

static enum pd_err flow(struct parser *p, const struct line *l, size_t *at);

/* A scalar or a nested flow inside {..} or [..]. */
static enum pd_err flow_item(struct parser *p, const struct line *l, size_t *at, bool key)
{
    size_t start, end;

    skip_blanks(l, at);
    if (*at >= l->len)
        return bad(p, l->number, "a flow without its end");
    if (l->text[*at] == '{' || l->text[*at] == '[')
        return key ? bad(p, l->number, "a key that is not a scalar") : flow(p, l, at);
    if (l->text[*at] == '"' || l->text[*at] == '\'')
        return quoted(p, l, at);
    start = *at;
    while (*at < l->len && !strchr(",]}", l->text[*at]) &&
           !(l->text[*at] == ':' && (*at + 1 == l->len || strchr(" ,]}", l->text[*at + 1]))))
        (*at)++;
    end = *at;
    while (end > start && l->text[end - 1] == ' ')
        end--;
    if (end > start && strchr("&*!|>%@`", l->text[start]) && !(key && l->text[start] == '*'))
        return pd_fail(p->why, PD_ERR_UNSUPPORTED, "line %d: this form of YAML is not supported", l->number);
    plain(p, l->text + start, end - start, key);
    return PD_OK;
}

static enum pd_err flow(struct parser *p, const struct line *l, size_t *at)
{
    char open = l->text[*at], close = open == '{' ? '}' : ']';
    enum pd_err err = PD_OK;

    if (++p->depth > DEPTH_MAX)
        return bad(p, l->number, "nested too deep");
    (*at)++;
    api_json_open(p->out, open);
    skip_blanks(l, at);
    while (err == PD_OK && *at < l->len && l->text[*at] != close) {
        err = flow_item(p, l, at, open == '{');
        skip_blanks(l, at);
        if (err == PD_OK && open == '{') {
            if (*at >= l->len || l->text[*at] != ':')
                return bad(p, l->number, "a key without ':'");
            (*at)++;
            pd_buf_append(p->out, ":", 1);
            skip_blanks(l, at);
            err = flow_item(p, l, at, false);
            skip_blanks(l, at);
        }
        if (err == PD_OK && *at < l->len && l->text[*at] == ',') {
            (*at)++;
            skip_blanks(l, at);
        } else if (err == PD_OK && (*at >= l->len || l->text[*at] != close)) {
            return bad(p, l->number, "expected ',' or the end of the flow");
        }
    }
    if (err != PD_OK)
        return err;
    if (*at >= l->len)
        return bad(p, l->number, "a flow without its end");
    (*at)++;
    p->depth--;
    api_json_close(p->out, close);
    return PD_OK;
}

/* The whole rest of a line as a value. */
static enum pd_err inline_value(struct parser *p, const struct line *l, size_t at)
{
    enum pd_err err = PD_OK;

    if (l->text[at] == '{' || l->text[at] == '[') {
        err = flow(p, l, &at);
    } else if (l->text[at] == '"' || l->text[at] == '\'') {
        err = quoted(p, l, &at);
    } else {
        if (strchr("&*!|>%@`", l->text[at]))
            return pd_fail(p->why, PD_ERR_UNSUPPORTED, "line %d: this form of YAML is not supported",
                           l->number);
        plain(p, l->text + at, l->len - at, false);
        at = l->len;
    }
    if (err == PD_OK && at != l->len)
        return bad(p, l->number, "something follows the value");
    return err;
}

/* Is there "key:" at the front? Its end (before ':') and where the value begins. */
static bool has_key(const struct line *l, size_t *ret_value)
{
    size_t i = 0;
    char quote = l->text[0] == '"' || l->text[0] == '\'' ? l->text[0] : 0;

    if (l->text[0] == '{' || l->text[0] == '[')
        return false;
    if (quote) {
        for (i = 1; i < l->len && l->text[i] != quote; i++)
            ;
        i++;
    }
    for (; i < l->len; i++) {
        if (l->text[i] == ':' && (i + 1 == l->len || l->text[i + 1] == ' ')) {
            *ret_value = i;
            return true;
        }
        if (quote)
            return false;
    }
    return false;
}

static enum pd_err block(struct parser *p, int indent);

static enum pd_err mapping(struct parser *p, int indent)
{
    api_json_open(p->out, '{');
    while (p->at < p->count && p->lines[p->at].indent == indent) {
        struct line *l = &p->lines[p->at];
        size_t colon, at;
        enum pd_err err;

        if (l->text[0] == '-' && (l->len == 1 || l->text[1] == ' '))
            break;
        if (!has_key(l, &colon))
            return bad(p, l->number, "expected 'key: value'");
        if (l->text[0] == '"' || l->text[0] == '\'') {
            size_t front = 0;

            err = quoted(p, l, &front);
            if (err != PD_OK)
                return err;
        } else {
            plain(p, l->text, colon, true);
        }
        pd_buf_append(p->out, ":", 1);
        at = colon + 1;
        skip_blanks(l, &at);
        p->at++;
        if (at < l->len) {
            err = inline_value(p, l, at);
        } else if (p->at < p->count &&
                   (p->lines[p->at].indent > indent ||
                    (p->lines[p->at].indent == indent && p->lines[p->at].text[0] == '-'))) {
            err = block(p, p->lines[p->at].indent);
        } else {
            api_json_null(p->out);
            err = PD_OK;
        }
        if (err != PD_OK)
            return err;
    }
    if (p->at < p->count && p->lines[p->at].indent > indent)
        return bad(p, p->lines[p->at].number, "unexpected indentation");
    api_json_close(p->out, '}');
    return PD_OK;
}

static enum pd_err sequence(struct parser *p, int indent)
{
    api_json_open(p->out, '[');
    while (p->at < p->count && p->lines[p->at].indent == indent && p->lines[p->at].text[0] == '-' &&
           (p->lines[p->at].len == 1 || p->lines[p->at].text[1] == ' ')) {
        struct line *l = &p->lines[p->at];
        size_t at = 1, colon;
        enum pd_err err;

        skip_blanks(l, &at);
        if (at >= l->len) {
            p->at++;
            if (p->at >= p->count || p->lines[p->at].indent <= indent)
                return bad(p, l->number, "an item without a value");
            err = block(p, p->lines[p->at].indent);
        } else {
            /* The item's text stands as a line of its own, further in. */
            l->text += at;
            l->len -= at;
            l->indent += (int)at;
            if (has_key(l, &colon) || (l->text[0] == '-' && l->len > 1 && l->text[1] == ' ')) {
                err = block(p, l->indent);
            } else {
                p->at++;
                err = inline_value(p, l, 0);
            }
        }
        if (err != PD_OK)
            return err;
    }
    if (p->at < p->count && p->lines[p->at].indent > indent)
        return bad(p, p->lines[p->at].number, "unexpected indentation");
    api_json_close(p->out, ']');
    return PD_OK;
}

static enum pd_err block(struct parser *p, int indent)
{
    const struct line *l = &p->lines[p->at];
    enum pd_err err;

    if (++p->depth > DEPTH_MAX)
        return bad(p, l->number, "nested too deep");
    err = l->text[0] == '-' && (l->len == 1 || l->text[1] == ' ') ? sequence(p, indent) : mapping(p, indent);
    p->depth--;
    return err;
}

enum pd_err api_yaml_to_json(const char *yaml, size_t len, struct pd_buf *out, struct pd_why *why)
{
    struct parser p = {.out = out, .why = why};
    size_t most = 1, start = 0;
    int number = 0;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < len; i++)
        most += yaml[i] == '\n';
    p.lines = calloc(most, sizeof *p.lines);
    if (!p.lines)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the document's lines");
    while (start < len) {
        const char *end = memchr(yaml + start, '\n', len - start);
        size_t n = end ? (size_t)(end - yaml) - start : len - start, indent = 0;
        struct line *l = &p.lines[p.count];

        number++;
        while (indent < n && yaml[start + indent] == ' ')
            indent++;
        l->text = yaml + start + indent;
        l->len = content_len(l->text, n - indent);
        l->indent = (int)indent;
        l->number = number;
        if (memchr(l->text, '\0', l->len) || memchr(l->text, '\t', l->len))
            err = bad(&p, number, "a tab or a NUL");
        if (l->len)
            p.count++;
        start += n + 1;
    }
    if (err == PD_OK && p.count == 0)
        err = bad(&p, 1, "the document is empty");
    if (err == PD_OK)
        err = block(&p, p.lines[0].indent);
    if (err == PD_OK && p.at < p.count)
        err = bad(&p, p.lines[p.at].number, "unexpected indentation");
    if (err == PD_OK && pd_buf_err(out) != PD_OK)
        err = pd_fail(why, pd_buf_err(out), "no memory for the document");
    free(p.lines);
    return err;
}
