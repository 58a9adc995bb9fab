/* tests/digest/test_digest.c: published vectors, round trips, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/digest/digest.h"

static void test_sha256_published_vectors_match(void **state)
{
    char hex[DIGEST_SHA256_HEX_SIZE];
    char *million = malloc(1000000);

    (void)state;
    /* FIPS 180-4 examples. */
    assert_string_equal(digest_sha256_hex("", 0, hex),
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(digest_sha256_hex("abc", 3, hex),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_non_null(million);
    memset(million, 'a', 1000000);
    assert_string_equal(digest_sha256_hex(million, 1000000, hex),
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void test_sha256_in_pieces_equals_whole(void **state)
{
    uint8_t whole[DIGEST_SHA256_BYTES], pieces[DIGEST_SHA256_BYTES];
    char text[300];
    struct digest_sha256 d;

    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 7);
    digest_sha256(text, sizeof text, whole);
    digest_sha256_init(&d);
    for (size_t i = 0; i < sizeof text; i += 37)
        digest_sha256_update(&d, text + i, sizeof text - i < 37 ? sizeof text - i : 37);
    digest_sha256_final(&d, pieces);
    assert_memory_equal(whole, pieces, sizeof whole);
    /* final begins anew */
    digest_sha256_update(&d, text, sizeof text);
    digest_sha256_final(&d, pieces);
    assert_memory_equal(whole, pieces, sizeof whole);
}

static void test_hmac_rfc4231_vectors_match(void **state)
{
    uint8_t key[131], out[DIGEST_SHA256_BYTES];
    char hex[DIGEST_SHA256_HEX_SIZE];

    (void)state;
    memset(key, 0x0b, 20);
    digest_hmac_sha256(key, 20, "Hi There", 8, out);
    assert_string_equal(digest_hex(out, 32, hex),
                        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    digest_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_string_equal(digest_hex(out, 32, hex),
                        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, 131);
    digest_hmac_sha256(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54, out);
    assert_string_equal(digest_hex(out, 32, hex),
                        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_hex_round_trip_and_refusals(void **state)
{
    uint8_t in[5] = {0, 1, 0x7f, 0x80, 0xff}, out[5] = {9, 9, 9, 9, 9};
    char hex[11];

    (void)state;
    assert_string_equal(digest_hex(in, 5, hex), "00017f80ff");
    assert_true(digest_unhex("00017F80fF", out, 5));
    assert_memory_equal(in, out, 5);
    memset(out, 9, 5);
    assert_false(digest_unhex("00017f80f", out, 5));
    assert_false(digest_unhex("00017f80ff0", out, 5));
    assert_false(digest_unhex("00017f80fg", out, 5));
    assert_int_equal(out[0], 9);
}

static void test_base64url_rfc4648_vectors_match(void **state)
{
    static const struct {
        const char *plain, *text;
    } cases[] = {{"", ""},           {"f", "Zg"},          {"fo", "Zm8"},          {"foo", "Zm9v"},
                 {"foob", "Zm9vYg"}, {"fooba", "Zm9vYmE"}, {"foobar", "Zm9vYmFy"}, {"\xfb\xff\xfe", "-__-"}};
    char text[32], plain[32];
    size_t len;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].plain);
        assert_string_equal(digest_base64url(cases[i].plain, n, text), cases[i].text);
        assert_int_equal(strlen(text) + 1, DIGEST_BASE64URL_SIZE(n));
        assert_int_equal(digest_base64url_decode(text, strlen(text), plain, sizeof plain, &len), PD_OK);
        assert_int_equal(len, n);
        assert_memory_equal(plain, cases[i].plain, n);
    }
}

static void test_base64url_refuses_what_has_another_text(void **state)
{
    char out[8];
    size_t len = 77;

    (void)state;
    assert_int_equal(digest_base64url_decode("Zh", 2, out, sizeof out, &len),
                     PD_ERR_INVALID); /* spare bits */
    assert_int_equal(digest_base64url_decode("Zm9", 3, out, sizeof out, &len),
                     PD_ERR_INVALID); /* spare bits */
    assert_int_equal(digest_base64url_decode("Zg==", 4, out, sizeof out, &len), PD_ERR_INVALID); /* padding */
    assert_int_equal(digest_base64url_decode("Zm9vY", 5, out, sizeof out, &len), PD_ERR_INVALID);
    assert_int_equal(digest_base64url_decode("-+", 2, out, sizeof out, &len), PD_ERR_INVALID);
    assert_int_equal(digest_base64url_decode("Z\0", 2, out, sizeof out, &len), PD_ERR_INVALID);
    assert_int_equal(digest_base64url_decode("Zm9vYmFyZm9v", 12, out, sizeof out, &len), PD_ERR_LIMIT);
    assert_int_equal(len, 77);
}

static void test_token_has_256_bits_and_differs(void **state)
{
    char a[DIGEST_TOKEN_TEXT_SIZE], b[DIGEST_TOKEN_TEXT_SIZE];
    uint8_t raw[DIGEST_TOKEN_BYTES];
    size_t len;

    (void)state;
    assert_int_equal(digest_token(a, NULL), PD_OK);
    assert_int_equal(digest_token(b, NULL), PD_OK);
    assert_int_equal(strlen(a), DIGEST_TOKEN_TEXT_SIZE - 1);
    assert_string_not_equal(a, b);
    assert_int_equal(digest_base64url_decode(a, strlen(a), raw, sizeof raw, &len), PD_OK);
    assert_int_equal(len, DIGEST_TOKEN_BYTES);
}

static void test_equal_sees_every_byte(void **state)
{
    char a[33] = "0123456789abcdef0123456789abcdef", b[33];

    (void)state;
    for (size_t i = 0; i < 32; i++) {
        memcpy(b, a, sizeof a);
        assert_true(digest_equal(a, b, 32));
        b[i] ^= 1;
        assert_false(digest_equal(a, b, 32));
    }
}

static void test_file_digest_and_its_failures(void **state)
{
    char path[] = "/tmp/test_digest.XXXXXX", hex[DIGEST_SHA256_HEX_SIZE] = "untouched";
    struct pd_why why;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "abc", 3), 3);
    close(fd);
    assert_int_equal(digest_file_hex(path, hex, &why), PD_OK);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    unlink(path);
    strcpy(hex, "untouched");
    assert_int_equal(digest_file_hex(path, hex, &why), PD_ERR_NOT_FOUND);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(digest_file_hex("/tmp", hex, &why), PD_ERR_IO);
    assert_string_equal(hex, "untouched");
}

static void test_base64_pads_and_refuses_other_forms(void **state)
{
    /* RFC 4648 section 10, and one value with both characters in which the alphabets differ */
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xfb\xff", "+/8="}};
    char text[16], back[8];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len = strlen(cases[i].bytes);

        assert_string_equal(digest_base64(cases[i].bytes, len, text), cases[i].text);
        assert_true(digest_unbase64(text, strlen(text), back, len));
        assert_memory_equal(back, cases[i].bytes, len);
    }
    assert_false(digest_unbase64("Zg", 2, back, 1));
    assert_false(digest_unbase64("Zh==", 4, back, 1)); /* unused bits */
    assert_false(digest_unbase64("-_8=", 4, back, 2)); /* the other alphabet */
    assert_false(digest_unbase64("Zg==", 4, back, 2));
    assert_false(digest_unbase64("Z===", 4, back, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_published_vectors_match),
        cmocka_unit_test(test_base64_pads_and_refuses_other_forms),
        cmocka_unit_test(test_sha256_in_pieces_equals_whole),
        cmocka_unit_test(test_hmac_rfc4231_vectors_match),
        cmocka_unit_test(test_hex_round_trip_and_refusals),
        cmocka_unit_test(test_base64url_rfc4648_vectors_match),
        cmocka_unit_test(test_base64url_refuses_what_has_another_text),
        cmocka_unit_test(test_token_has_256_bits_and_differs),
        cmocka_unit_test(test_equal_sees_every_byte),
        cmocka_unit_test(test_file_digest_and_its_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
