#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/wire/wire.h"

static void test_wire_frame_has_the_layout_of_the_specification(void **state)
{
    struct pd_buf b;
    size_t at;
    const uint8_t *p;

    (void)state;
    pd_buf_init(&b, 0);
    at = wire_begin(&b, WIRE_ACK, 0, 0x0102030405060708);
    wire_put_u64(&b, WIRE_TAG_ACKED, 7);
    assert_int_equal(wire_end(&b, at), PD_OK);
    p = (const uint8_t *)b.data;
    assert_int_equal(b.len, 24 + 8 + 8);
    assert_memory_equal(p, "PDWK\x01\x00\x06\x00\x10\x00\x00\x00", 12);
    assert_memory_equal(p + 16, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
    assert_memory_equal(p + 24, "\x0b\x00\x00\x00\x08\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00", 16);
    pd_buf_done(&b);
}

static void test_wire_hello_keeps_version_zero(void **state)
{
    struct pd_buf b;
    size_t at;

    (void)state;
    pd_buf_init(&b, 0);
    at = wire_begin(&b, WIRE_HELLO, 0, 0);
    assert_int_equal(wire_end(&b, at), PD_OK);
    wire_set_version((uint8_t *)b.data, 9);
    assert_int_equal(b.data[4], 0);
    at = wire_begin(&b, WIRE_BYE, 0, 0);
    assert_int_equal(wire_end(&b, at), PD_OK);
    wire_set_version((uint8_t *)b.data + at, 9);
    assert_int_equal(b.data[at + 4], 9);
    pd_buf_done(&b);
}

static void fill(struct pd_buf *b)
{
    const struct wire_point points[] = {{.key = 1, .step = -5, .time_us = 1700000000000000, .value = -0.25},
                                        {.key = 0, .step = INT64_MAX, .time_us = 0, .value = (double)NAN}};
    const float data[6] = {1, 2, 3, 4, 5, 6};
    struct wire_tensor t = {
        .name = "x", .dtype = "FP32", .rank = 2, .shape = {2, 3}, .data = data, .bytes = sizeof data};
    size_t at = wire_begin(b, WIRE_METRICS, 0, 42);

    wire_put_text(b, WIRE_TAG_KEY, "loss/train");
    wire_put_text(b, WIRE_TAG_KEY, "");
    wire_put_points(b, points, 2);
    wire_put_f64(b, WIRE_TAG_VALUE, 1e300);
    wire_put_u32(b, WIRE_TAG_LAST, 1);
    wire_put_tensor(b, &t);
    assert_int_equal(wire_end(b, at), PD_OK);
}

static void test_wire_round_trip_byte_by_byte(void **state)
{
    struct pd_buf b;
    struct wire_in in;
    struct wire_header head;
    struct wire_field f;
    struct wire_point p;
    struct wire_tensor t;
    struct pd_why why;
    const uint8_t *payload;
    char text[16];
    int fd[2];

    (void)state;
    pd_buf_init(&b, 0);
    fill(&b);
    fill(&b);
    wire_in_init(&in);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    for (size_t i = 0; i < b.len; i++) {
        assert_int_equal(write(fd[0], b.data + i, 1), 1);
        assert_int_equal(wire_in_read(&in, fd[1], 100, &why), PD_OK);
        if ((i + 1) % (b.len / 2) == 0)
            assert_int_equal(wire_in_next(&in, &head, &payload, &why), PD_OK);
        else
            assert_int_equal(wire_in_next(&in, &head, &payload, &why), PD_ERR_NOT_FOUND);
    }
    assert_int_equal(head.type, WIRE_METRICS);
    assert_int_equal(head.seq, 42);
    assert_true(wire_get_text(payload, head.len, WIRE_TAG_KEY, text, sizeof text));
    assert_string_equal(text, "loss/train");
    assert_false(wire_get_text(payload, head.len, WIRE_TAG_KEY, text, 5)); /* does not fit: not cut */
    assert_true(wire_find(payload, head.len, WIRE_TAG_POINTS, &f));
    p = wire_point_at(&f, 0);
    assert_true(p.key == 1 && p.step == -5 && p.time_us == 1700000000000000 && p.value == -0.25);
    p = wire_point_at(&f, 1);
    assert_true(p.step == INT64_MAX && isnan(p.value));
    assert_true(wire_get_f64(payload, head.len, WIRE_TAG_VALUE, 0) == 1e300);
    assert_int_equal(wire_get_u32(payload, head.len, WIRE_TAG_LAST, 0), 1);
    assert_int_equal(wire_get_u32(payload, head.len, WIRE_TAG_VALUE, 77), 77); /* wrong length = missing */
    assert_true(wire_find(payload, head.len, WIRE_TAG_TENSOR, &f));
    assert_int_equal(wire_get_tensor(&f, &t, &why), PD_OK);
    assert_true(t.rank == 2 && t.shape[1] == 3 && t.bytes == 24);
    assert_string_equal(t.dtype, "FP32");
    f.len = 9;
    assert_int_equal(wire_get_tensor(&f, &t, &why), PD_ERR_CORRUPT);
    close(fd[0]);
    assert_int_equal(wire_in_read(&in, fd[1], 100, &why), PD_ERR_CLOSED);
    close(fd[1]);
    wire_in_done(&in);
    pd_buf_done(&b);
}

/* Every single changed byte must be noticed: the header's magic, length, or the checksum. */
static void test_wire_changed_byte_is_noticed(void **state)
{
    struct pd_buf b;
    struct wire_header head;
    const uint8_t *payload;
    struct pd_why why;

    (void)state;
    pd_buf_init(&b, 0);
    fill(&b);
    for (size_t i = 0; i < b.len; i++) {
        struct wire_in in;
        enum pd_err err;

        if (i >= 4 && i < 8) /* version, flags and type are read by the receiver */
            continue;
        if (i >= 16 && i < 24) /* the sequence number is checked against its neighbours */
            continue;
        wire_in_init(&in);
        pd_buf_append(&in.buf, b.data, b.len);
        in.buf.data[i] ^= 0x10;
        err = wire_in_next(&in, &head, &payload, &why);
        assert_true(err == PD_ERR_CORRUPT || err == PD_ERR_LIMIT ||
                    (i >= 8 && i < 12 && err == PD_ERR_NOT_FOUND));
        wire_in_done(&in);
    }
    pd_buf_done(&b);
}

static void test_wire_too_large_is_refused_and_taken_off(void **state)
{
    struct pd_buf b;
    uint8_t *big = calloc(1, WIRE_PAYLOAD_MAX);
    size_t at, before;

    (void)state;
    pd_buf_init(&b, 0);
    fill(&b);
    before = b.len;
    at = wire_begin(&b, WIRE_EVENT, 0, 1);
    wire_put_bytes(&b, WIRE_TAG_JSON, big, WIRE_PAYLOAD_MAX);
    assert_int_equal(wire_end(&b, at), PD_ERR_LIMIT);
    assert_int_equal(b.len, before);
    at = wire_begin(&b, WIRE_EVENT, 0, 1);
    wire_put_bytes(&b, WIRE_TAG_JSON, big, (size_t)WIRE_PAYLOAD_MAX + 1);
    assert_int_equal(wire_end(&b, at), PD_ERR_LIMIT);
    assert_int_equal(b.len, before);
    assert_int_equal(pd_buf_err(&b), PD_OK);
    pd_buf_done(&b);
    free(big);
}

static void test_wire_names_every_type(void **state)
{
    (void)state;
    for (unsigned i = 1; i < WIRE_TYPE_COUNT; i++)
        assert_string_not_equal(wire_type_name(i), "unknown");
    assert_string_equal(wire_type_name(0), "unknown");
    assert_string_equal(wire_type_name(9999), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_frame_has_the_layout_of_the_specification),
        cmocka_unit_test(test_wire_hello_keeps_version_zero),
        cmocka_unit_test(test_wire_round_trip_byte_by_byte),
        cmocka_unit_test(test_wire_changed_byte_is_noticed),
        cmocka_unit_test(test_wire_too_large_is_refused_and_taken_off),
        cmocka_unit_test(test_wire_names_every_type),
    };

    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
