/* What a served model says of itself, as JSON: the API shows it. What differs between kinds is theirs. */
#include "daemon/worker/serve/internal.h"
#include "kernels/base/json.h"

void serve_put_tensor(struct pd_buf *out, const char *name, const char *datatype, const int64_t *sizes,
                      size_t count)
{
    pd_json_open(out, '{');
    pd_json_kv_str(out, "name", name);
    pd_json_kv_str(out, "datatype", datatype);
    pd_json_key(out, "shape");
    pd_json_open(out, '[');
    pd_json_int(out, -1);
    for (size_t i = 0; i < count; i++)
        pd_json_int(out, sizes[i]);
    pd_json_close(out, ']');
    pd_json_close(out, '}');
}

enum pd_err serve_signature(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;
    const struct serve_memory *m = &s->memory;

    pd_json_open(out, '{');
    pd_json_kv_str(out, "platform", i->platform);
    pd_json_kv_str(out, "kind", i->kind->name);
    i->kind->signature(s, out);
    pd_json_kv_uint(out, "step", i->step);
    pd_json_kv_uint(out, "memory_bytes",
                    m->weights_bytes + m->cache_bytes + m->arena_bytes + m->inputs_bytes);
    pd_json_kv_uint(out, "memory_most_bytes", m->most_bytes);
    pd_json_close(out, '}');
    return pd_buf_err(out);
}
