/* A stream of worker frames (daemon/wire): as a header, as a payload, and as what arrives on a socket. */
#include <stdlib.h>
#include <string.h>

#include "daemon/wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* Everything that a receiver asks of a payload. */
static void read_payload(const uint8_t *payload, size_t len)
{
    struct wire_field f;
    struct pd_why why;
    size_t pos = 0, fields = 0;
    bool bad = false;
    char text[64];

    while (wire_next(payload, len, &pos, &f, &bad)) {
        struct wire_tensor t;

        if (f.bytes < payload || f.bytes + f.len > payload + len)
            abort();
        fields++;
        if (f.tag == WIRE_TAG_TENSOR && wire_get_tensor(&f, &t, &why) == PD_OK) {
            const uint8_t *data = t.data;

            if (t.rank > WIRE_RANK_MAX || t.bytes > f.len || data < f.bytes ||
                data + t.bytes > f.bytes + f.len)
                abort();
            for (uint32_t i = 0; i < t.rank; i++) {
                if (t.shape[i] < 0)
                    abort();
            }
        }
        if (f.tag == WIRE_TAG_POINTS && f.len % WIRE_POINT_BYTES == 0) {
            for (size_t i = 0; i < f.len / WIRE_POINT_BYTES; i++)
                (void)wire_point_at(&f, i);
        }
    }
    if (wire_valid(payload, len) == bad)
        abort();
    (void)wire_get_u32(payload, len, WIRE_TAG_ATTEMPT, 0);
    (void)wire_get_u64(payload, len, WIRE_TAG_RUN, 0);
    (void)wire_get_f64(payload, len, WIRE_TAG_VALUE, 0);
    if (wire_get_text(payload, len, WIRE_TAG_TEXT, text, sizeof text) && strlen(text) >= sizeof text)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct wire_header head;
    const uint8_t *payload;
    struct wire_in in;
    struct pd_why why;

    if (len >= WIRE_HEADER_BYTES) {
        if (wire_header_parse(bytes, &head, &why) == PD_OK && head.len > WIRE_PAYLOAD_MAX)
            abort();
    }
    read_payload(bytes, len);
    wire_in_init(&in);
    pd_buf_append(&in.buf, bytes, len);
    while (wire_in_next(&in, &head, &payload, &why) == PD_OK)
        read_payload(payload, head.len);
    wire_in_done(&in);
    return 0;
}
